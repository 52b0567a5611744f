"""Scores against values worked out by hand or by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.evaluation import (
    paired_difference,
    pass_at_k,
    score,
    wilson_interval,
)
from ragen_pl.types import TrajectoryGroup
from tests.doubles import make_group, make_trajectory, make_turn


def panel(outcomes: list[bool], first_seed: int = 0) -> list[TrajectoryGroup]:
    return [make_group([float(win)], seed=first_seed + i) for i, win in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_interval(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_of_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_counts_subsets(case: tuple[int, int]) -> None:
    count, successes = case
    tries = [True] * successes + [False] * (count - successes)
    for k in range(1, count + 1):
        subsets = list(itertools.combinations(tries, k))
        share = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k(count, successes, k) == pytest.approx(share)


def test_pass_at_k_refuses_more_tries_than_there_are() -> None:
    with pytest.raises(ValueError, match="k is 5"):
        pass_at_k(4, 1, 5)


def test_score() -> None:
    turns = [make_turn(1.0, is_true=True), make_turn(0.0, is_valid=False, is_true=False)]
    won = make_trajectory(turns, stratum="2-3", success=True)
    lost = make_trajectory([make_turn(0.0)], stratum="4-5", member=1)
    result = score([TrajectoryGroup(0, 0, (won, lost)), make_group([5.0], broken=[0])])
    assert (result.success, result.count) == (0.5, 2)
    assert result.low < 0.5 < result.high
    assert result.mean_return == pytest.approx(0.45)
    assert result.true_thoughts == 0.5
    assert result.valid_format == pytest.approx(2 / 3)
    assert result.by_stratum == {"2-3": (1.0, 1), "4-5": (0.0, 1)}
    assert (result.solved, result.failed) == ((0,), (0,))


def test_score_without_thoughts_or_strata() -> None:
    result = score(panel([True, False]))
    assert result.true_thoughts is None
    assert result.by_stratum == {}


def test_score_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="environment failed in all"):
        score([make_group([1.0], broken=[0])])


def test_paired_difference() -> None:
    before, after = [False] * 6 + [True] * 4, [True] * 3 + [False] * 3 + [True] * 3 + [False]
    difference = paired_difference(score(panel(before)), score(panel(after)))
    assert difference.mean == pytest.approx(0.2)
    # Gains are 3 × 1, 1 × −1 and 6 × 0: sample variance 3.6 / 9.
    half = 1.96 * math.sqrt(3.6 / 9 / 10)
    assert (difference.low, difference.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-3)


def test_paired_difference_wants_the_same_starts() -> None:
    with pytest.raises(ValueError, match="same panel"):
        paired_difference(score(panel([True, False])), score(panel([True, False], first_seed=1)))


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_a_policy_does_not_differ_from_itself(outcomes: list[bool]) -> None:
    difference = paired_difference(score(panel(outcomes)), score(panel(outcomes)))
    assert (difference.low, difference.mean, difference.high) == (0.0, 0.0, 0.0)
