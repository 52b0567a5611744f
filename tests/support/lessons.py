"""Demonstrations as one set, as the data module packs them."""

from __future__ import annotations

from typing import Any

from ragen_pl.rollout import demonstrations
from ragen_pl.types import DemonstrationSet


def demonstrate(*arguments: Any, first_seed: int) -> DemonstrationSet:
    """Make and pack the lessons of one environment; arguments as ``demonstrations.demonstrate``."""
    lessons = demonstrations.demonstrate(*arguments, first_seed=first_seed)
    return demonstrations.packed(lessons.lessons)
