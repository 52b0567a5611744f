"""Synthetic histories of indicators, and their assessment as they grow."""

from __future__ import annotations

import random

from ragen_pl.ops.echo_trap.assess import Assessment, Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds

BASELINE = 10
THRESHOLDS = CollapseThresholds()


def look(rng: random.Random, **values: float) -> Indicators:
    """Return indicators with the noise of a collection of some hundred trajectories."""
    usual = {
        "in_group_std": 2.0,
        "zero_std_fraction": 0.1,
        "entropy": 0.4,
        "valid_format": 0.99,
        "penalty_share": 0.0,
        "success": 0.5,
        "mean_return": 3.0,
        "grad_norm": 1.0,
        "response_length": 10.0,
    } | values
    noise = {
        "success": 0.04,
        "valid_format": 0.01,
        "zero_std_fraction": 0.03,
        "penalty_share": 0.01,
    }
    drawn = {
        name: min(1.0, max(0.0, rng.gauss(value, noise[name])))
        if name in noise
        else value * rng.lognormvariate(0, 0.4 if name == "grad_norm" else 0.05)
        for name, value in usual.items()
    }
    return Indicators(**drawn)


def assessments(
    run: list[Indicators], thresholds: CollapseThresholds = THRESHOLDS
) -> list[Assessment]:
    return [assess(run[: t + 1], BASELINE, thresholds) for t in range(len(run))]


def first(run: list[Assessment], level: Level) -> int:
    """Return the first iteration at this level or a worse one; a large number without."""
    return next((t for t, assessment in enumerate(run) if assessment.level >= level), 10**6)
