"""Checkpoints loaded into sharded networks.

Lightning's own loading (2.6.6) cannot be used, for two reasons. It requires every weight to be in
the checkpoint, but a frozen base is left out. And it numbers the optimizer's weights among all
weights of the module, but a single process numbers the trained ones only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from ragen_pl.distributed.shard_folder import META, ShardReader, load_shards
from ragen_pl.distributed.sharding import load_full_optimizer_state, load_full_state
from ragen_pl.errors import ConfigError


def load_sharded(
    path: Path,
    module: nn.Module,
    optimizers: Sequence[Optimizer],
    left_out: Collection[str],
    weights_only: bool | None,
) -> dict[str, Any]:
    """Load weights and moments in place, from a folder of shards or from a single file.

    Every rank must call it; the checkpoint must be on a disk that all ranks read.

    Args:
        path: Path of the checkpoint.
        module: The networks.
        optimizers: The optimizers of their weights; if empty, only weights are loaded.
        left_out: Names of weights that checkpoints do not hold, such as those of a frozen base.
        weights_only: As in ``torch.load``; None means true.

    Returns:
        Everything else that the checkpoint holds.

    Raises:
        ConfigError: when the checkpoint holds other networks.
    """
    safe = weights_only is not False  # Lightning passes no default (2.6.6)
    own = {name: value for name, value in module.state_dict().items() if name not in left_out}
    if not path.is_dir():
        return _load_file(path, module, own, optimizers, safe)
    saved = ShardReader(path).read_metadata().state_dict_metadata
    prefix = "state_dict."
    _check(path, own, {name[len(prefix) :] for name in saved if name.startswith(prefix)})
    load_shards(path, {"state_dict": own})
    for number, optimizer in enumerate(optimizers):
        name = f"optimizer_{number}"
        # A run that hindsight imitation is new to has one optimizer more.
        if any(each.startswith(f"{name}.") for each in saved):
            _load_moments(path, module, optimizer, name, saved)
    rest: dict[str, Any] = torch.load(path / META, map_location="cpu", weights_only=safe)
    return rest


def _load_moments(
    path: Path, module: nn.Module, optimizer: Optimizer, name: str, saved: Collection[str]
) -> None:
    """Load the moments that a folder holds, and delete all others.

    Not every weight has saved moments: the policy has none while only the critic is trained.
    """
    state: dict[str, Any] = get_optimizer_state_dict(module, optimizer)
    moments = state["state"]
    missing = {
        weight
        for weight, values in moments.items()
        if not all(f"{name}.state.{weight}.{moment}" in saved for moment in values)
    }
    state["state"] = {weight: moments[weight] for weight in moments if weight not in missing}
    load_shards(path, {name: state})
    options = StateDictOptions(cpu_offload=True, strict=False)
    set_optimizer_state_dict(module, optimizer, optim_state_dict=state, options=options)
    for weight, parameter in module.named_parameters():
        if weight in missing:
            optimizer.state.pop(parameter, None)


def _load_file(
    path: Path,
    module: nn.Module,
    own: Collection[str],
    optimizers: Sequence[Optimizer],
    weights_only: bool,
) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(
        path, mmap=True, map_location="cpu", weights_only=weights_only
    )
    weights = checkpoint.pop("state_dict")
    _check(path, own, weights)
    load_full_state(module, weights)
    states = checkpoint.pop("optimizer_states", [])
    # A run that hindsight imitation is new to, or left, has one optimizer more or less.
    for optimizer, state in zip(optimizers, states, strict=False):
        load_full_optimizer_state(state, optimizer)
    return checkpoint


def _check(path: Path, own: Collection[str], saved: Collection[str]) -> None:
    """Raise a ConfigError unless the checkpoint holds the weights of the run's networks."""
    differing = sorted(set(own) ^ set(saved))
    if differing:
        where = "in the run" if differing[0] in own else "in the checkpoint"
        raise ConfigError(
            f"{path} holds other networks: {len(differing)} weights differ, such as "
            f"{differing[0]}, which is only {where}: resume with the model and the algorithm that "
            "the checkpoint was written with"
        )
