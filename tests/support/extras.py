"""Skip what needs the optional packages of environments, where they are missing."""

from __future__ import annotations

import pytest

from ragen_pl.cli.config_files import FOLDER

PACKAGES = {
    "AlfWorld": ("alfworld", "alfworld"),
    "ScienceWorld": ("scienceworld", "scienceworld"),
}
"""Package and extra by adapter; all others need the packages of the extra ``envs``."""


def is_adapted(experiment: str) -> bool:
    """Return whether an experiment's environment is an adapter to another package."""
    return "ragen_pl.envs.adapters." in _text_of(experiment)


def is_slow(experiment: str) -> bool:
    """Return whether an experiment's environment takes seconds to be checked."""
    return any(f"adapters.{name}" in _text_of(experiment) for name in PACKAGES)


def _text_of(experiment: str) -> str:
    return (FOLDER / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")


def need_packages(experiment: str) -> None:
    """Skip the test of an experiment whose environment is an adapter to a missing package."""
    if not is_adapted(experiment):
        return
    text = _text_of(experiment)
    needed = [(p, e) for name, (p, e) in PACKAGES.items() if f"adapters.{name}" in text]
    for package, extra in needed or [(p, "envs") for p in ("pyspiel", "reasoning_gym", "minigrid")]:
        pytest.importorskip(package, reason=f"needs the extra {extra}: pip install -e '.[{extra}]'")
