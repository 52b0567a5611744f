"""Bursts of entropy on hand-made series: each is counted once, and seen from its own trough."""

from __future__ import annotations

import pytest

from ragen_pl.ops.echo_trap.eruption import Bursts, find_bursts

CALM = [0.5, 0.45, 0.4, 0.36]


def test_a_decaying_entropy_has_no_burst() -> None:
    assert find_bursts(CALM) == Bursts(0, 1.0, False)
    assert find_bursts([]) == Bursts(0, 1.0, False)


def test_a_burst_is_counted_once_and_ends_below_half_of_its_rise() -> None:
    up = [*CALM, 0.6, 0.9, 1.2]
    assert find_bursts(up) == Bursts(1, pytest.approx(1.2 / 0.36), True)
    assert find_bursts([*up, 0.79]).is_present  # half of the rise is 0.78
    assert find_bursts([*up, 0.77]) == Bursts(1, 1.0, False)


def test_every_cycle_counts_from_its_own_trough() -> None:
    """The lowest entropy so far, 0.2, is far below the second trough, 0.5."""
    assert find_bursts([0.2, 1.0, 0.65]) == Bursts(1, pytest.approx(3.25), True)
    series = [0.2, 1.0, 0.55, 0.5]  # half of the rise is lost below 0.6
    assert find_bursts(series) == Bursts(1, 1.0, False)
    assert find_bursts([*series, 0.7]).count == 1
    assert find_bursts([*series, 0.8]) == Bursts(2, pytest.approx(1.6), True)
    assert find_bursts([*series, 0.8, 0.5, 0.9]).count == 3


def test_small_rises_do_not_count_at_any_ratio() -> None:
    assert find_bursts([0.01, 0.04]).count == 0
    assert find_bursts([0.01, 0.07]).count == 1
    assert find_bursts([0.0, 0.04]) == Bursts(0, 1.0, False)  # no ratio to nothing
