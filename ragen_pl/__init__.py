"""ragen-pl: multi-turn reinforcement learning of LLM agents with StarPO-S, on PyTorch Lightning.

The public names are loaded when they are first used: ``ragen_pl.envs`` needs no PyTorch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("ragen-pl")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0.0.0"

_HOMES = {
    "Algorithm": "algorithms",
    "EmbeddedModel": "models",
    "LoRA": "models",
    "Optimization": "algorithms",
    "PretrainedModel": "models",
    "RolloutCallback": "training",
    "RolloutConfig": "rollout",
    "RolloutDataModule": "training",
    "StarPO": "training",
    "TextEnv": "envs",
    "WarmStart": "rollout",
}
"""Public names and the rooms they live in."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"ragen_pl has no {name}; its public names are {', '.join(__all__)}")
    return getattr(importlib.import_module(f"ragen_pl.{_HOMES[name]}"), name)
