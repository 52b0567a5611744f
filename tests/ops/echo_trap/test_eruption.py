"""Bursts of entropy on hand-made series: each is counted once, and seen from its own trough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ragen_pl.ops.echo_trap import eruption

CALM = [0.5, 0.45, 0.4, 0.36]


def find_bursts(entropies: Sequence[float]) -> tuple[int, Any, bool]:
    """Return count, height and whether there is one now."""
    found = eruption.find_bursts(entropies)
    return found.count, found.height, found.is_present


def test_a_decaying_entropy_has_no_burst() -> None:
    assert find_bursts(CALM) == (0, 1.0, False)
    assert find_bursts([]) == (0, 1.0, False)


def test_a_burst_is_counted_once_and_ends_below_half_of_its_rise() -> None:
    up = [*CALM, 0.6, 0.9, 1.2]
    assert find_bursts(up) == (1, pytest.approx(1.2 / 0.36), True)
    assert find_bursts([*up, 0.79])[2]  # half of the rise is 0.78
    assert find_bursts([*up, 0.77]) == (1, 1.0, False)


def test_every_cycle_counts_from_its_own_trough() -> None:
    """The lowest entropy so far, 0.2, is far below the second trough, 0.5."""
    assert find_bursts([0.2, 1.0, 0.65]) == (1, pytest.approx(3.25), True)
    series = [0.2, 1.0, 0.55, 0.5]  # half of the rise is lost below 0.6
    assert find_bursts(series) == (1, 1.0, False)
    assert find_bursts([*series, 0.7])[0] == 1
    assert find_bursts([*series, 0.8]) == (2, pytest.approx(1.6), True)
    assert find_bursts([*series, 0.8, 0.5, 0.9])[0] == 3


def test_small_rises_do_not_count_at_any_ratio() -> None:
    assert find_bursts([0.01, 0.04])[0] == 0
    assert find_bursts([0.01, 0.07])[0] == 1
    assert find_bursts([0.0, 0.04]) == (0, 1.0, False)  # no ratio to nothing
