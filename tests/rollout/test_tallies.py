"""What is counted of trajectories."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ragen_pl.rollout.tallies import (
    Tally,
    learning_gains,
    sum_tallies,
    tally_by_difficulty,
    tally_by_start,
)
from ragen_pl.types import StopReason, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn


def gains(*returns: float) -> list[float]:
    """Return the learning gains of trajectories of one positive reward each."""
    return learning_gains(returns, returns)


def test_gains_are_absolute_advantages() -> None:
    assert learning_gains([], []) == []
    assert gains(2.0, 2.0, 2.0) == [0.0] * 3
    assert gains(0.1 + 0.2, 0.3) == [0.0] * 2, "rounding is no gain"
    assert gains(0.0, 1.0) == [1.0, 1.0]
    assert gains(0.3, 0.3 + 1e-8) == [0.0] * 2, "nor is that of float32, in which updates hold them"
    assert learning_gains([1e-9, 0.0], [1e-9, 0.0]) == [1.0, 1.0], "in whatever unit"
    assert gains(0.0, 0.0, 0.0, 4.0) == pytest.approx([3**-0.5] * 3 + [3**0.5])


@pytest.mark.parametrize("wins", range(1, 8))
def test_the_mean_gain_of_wins_and_losses_has_a_closed_form(wins: int) -> None:
    p = wins / 8
    assert sum(gains(*[1.0] * wins, *[0.0] * (8 - wins))) / 8 == pytest.approx(
        2 * math.sqrt(p * (1 - p))
    )


def test_tallies_have_the_gains_of_groups_not_of_their_union() -> None:
    """Half of the starts are always solved: success is 1/2, but there is nothing to learn."""
    groups = [make_group([0.0, 0.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    (tally,) = tally_by_difficulty(groups).values()
    assert (tally.success, tally.gain) == (0.5, 0.0)
    mixed = tally_by_start([make_group([0.0, 1.0], seed=7), make_group([1.0], seed=9)])
    assert mixed == {"7": Tally(1.0, 2.0, 2.0), "9": Tally(1.0, 1.0, 0.0)}
    assert tally_by_start([make_group([0.0, 5.0], broken=[0])])["1000"] == Tally(1.0, 1.0, 0.0)


def test_only_what_counts_is_tallied() -> None:
    def play(difficulty: str, success: bool, stop: StopReason) -> Any:
        turns = [make_turn()]
        return make_trajectory(turns, difficulty=difficulty, success=success, stop_reason=stop)

    end, failed = StopReason.TERMINATED, StopReason.ENV_ERROR
    groups = [
        TrajectoryGroup(0, 0, (play("a", True, end), play("a", False, end))),
        TrajectoryGroup(1, 1, (play("b", True, end), play("b", False, failed))),
        TrajectoryGroup(2, 2, (play("", False, failed),)),
    ]
    assert tally_by_difficulty(groups) == {"a": Tally(1.0, 2.0), "b": Tally(1.0, 1.0)}


def test_sums_of_tallies_keep_the_age_of_the_latest() -> None:
    parts = [{"a": Tally(1.0, 2.0, 0.5, 5)}, {"a": Tally(1.0, 1.0, 0.0, 3), "b": Tally(0.0, 1.0)}]
    assert sum_tallies(parts) == {"a": Tally(2.0, 3.0, 0.5, 3), "b": Tally(0.0, 1.0)}
