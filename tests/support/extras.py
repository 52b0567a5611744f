"""Skip what needs the optional packages of environments, where they are missing."""

from __future__ import annotations

import pytest

from ragen_pl.cli.config_files import FOLDER


def is_adapted(experiment: str) -> bool:
    """Return whether an experiment's environment is an adapter to another package."""
    text = (FOLDER / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8")
    return "ragen_pl.envs.adapters." in text


def need_packages(experiment: str) -> None:
    """Skip the test of an experiment whose environment is an adapter to a missing package."""
    if is_adapted(experiment):
        for package in ("pyspiel", "reasoning_gym", "minigrid"):
            pytest.importorskip(package, reason="needs the extra envs: pip install -e '.[envs]'")
