"""A whole number split by weights: expected counts, and their unbiased rounding."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

_ROUNDING = 1e-9


def expected_counts(
    available: Mapping[str, int], weights: Mapping[str, float], wanted: float
) -> dict[str, float]:
    """Split a number in proportion to weights, to none more than it has available.

    What one cannot take goes to the others by their weights; those of weight 0 come last.

    Args:
        available: Candidates of each; together at least ``wanted``.
        weights: Weights ≥ 0.
        wanted: The number to split.
    """
    expected: dict[str, float] = {}
    left = wanted
    while len(expected) < len(available):
        rest = [name for name in available if name not in expected]
        by: Mapping[str, float] = weights if any(weights[name] for name in rest) else available
        total = math.fsum(by[name] for name in rest)
        shares = {name: left * by[name] / total for name in rest}
        full = [name for name in rest if shares[name] >= available[name] - _ROUNDING]
        if not full:
            return expected | shares
        expected |= {name: float(available[name]) for name in full}
        left = max(0.0, left - sum(available[name] for name in full))
    return expected


def rounded_counts(expected: Mapping[str, float], rng: random.Random) -> dict[str, int]:
    """Round numbers whose sum is whole up or down, so that the sum stays and each has the given
    expectation (systematic sampling)."""
    offset, reached, position = rng.random(), 0, 0.0
    counts = {}
    for name, value in expected.items():
        position += value
        # Rounding keeps numbers that are whole, up to the error of the sum, from going astray.
        passed = math.ceil(round(position, 9) - offset)
        counts[name], reached = passed - reached, passed
    return counts
