"""Evaluation results against values computed by hand or by enumeration."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.training.evaluation import (
    effective_sample_size,
    paired_difference,
    pass_at_k,
    summarize,
    wilson_interval,
)
from ragen_pl.types import StopReason, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn


def eval_set(outcomes: list[bool], first_seed: int = 0) -> list[TrajectoryGroup]:
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


def test_summary() -> None:
    turns = [
        make_turn(1.0, thought_correct=True),
        make_turn(0.0, is_valid=False, thought_correct=False),
    ]
    won = make_trajectory(turns, difficulty="2-3", success=True)
    lost = make_trajectory([make_turn(0.0)], difficulty="4-5", member=1)
    result = summarize([TrajectoryGroup(0, 0, (won, lost)), make_group([5.0], broken=[0])])
    assert (result.success, result.count) == (0.5, 2)
    assert result.low < 0.5 < result.high
    assert result.mean_return == pytest.approx(0.45)
    assert result.thought_accuracy == 0.5
    assert result.valid_format == pytest.approx(2 / 3)
    assert result.by_difficulty == {"2-3": (1.0, 1), "4-5": (0.0, 1)}
    assert (result.solved_seeds, result.failed_seeds) == ((0,), (0,))


def test_only_environment_errors_are_excluded_from_the_denominator() -> None:
    full = make_trajectory([], stop_reason=StopReason.CONTEXT_FULL)
    result = summarize(
        [*eval_set([True]), TrajectoryGroup(1, 1, (full,)), make_group([1.0], broken=[0])]
    )
    assert (result.success, result.count, result.valid_format) == (0.5, 2, 1.0)
    assert result.env_errors == 1
    nothing = summarize([TrajectoryGroup(1, 1, (full,))])
    assert (nothing.success, nothing.count, nothing.valid_format) == (0.0, 1, 0.0)
    assert nothing.mean_return == 0.0


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_starts_played_once_count_in_full(outcomes: list[bool]) -> None:
    assert effective_sample_size([[win] for win in outcomes]) == pytest.approx(len(outcomes))
    result = summarize(eval_set(outcomes))
    assert (result.low, result.high) == pytest.approx(wilson_interval(sum(outcomes), len(outcomes)))


def test_effective_sample_sizes_by_hand() -> None:
    """The start decides; it plays no part; half and half: clusters' variance 3/2 · 8 / 12² over
    1/2 · 1/2 / 11 makes a design effect of 11/3."""
    assert effective_sample_size([[True] * 50, [False] * 50]) == pytest.approx(2)
    assert effective_sample_size([[True, False] * 25] * 2) == pytest.approx(100)
    third = [[True] * 4, [False] * 4, [True, True, False, False]]
    assert effective_sample_size(third) == pytest.approx(12 / (11 / 3))
    assert effective_sample_size([[True] * 5, [True] * 5]) == 10
    assert effective_sample_size([[True, False]]) == 2
    assert effective_sample_size([]) == 0


@pytest.mark.parametrize(("starts", "tries"), [(16, 16), (64, 4), (256, 1)])
def test_the_interval_holds_the_truth_however_often_starts_are_played(
    starts: int, tries: int
) -> None:
    """Starts of very unequal difficulty, whose mean is 0.6: of 16 played 16 times the interval of
    independent trajectories holds it in three of five evaluation sets."""
    rng, held, eval_sets = random.Random(0), 0, 600
    naive = 0
    for _ in range(eval_sets):
        chances = [rng.betavariate(0.6, 0.4) for _ in range(starts)]
        outcomes = [[rng.random() < chance for _ in range(tries)] for chance in chances]
        share, count = sum(map(sum, outcomes)) / (starts * tries), effective_sample_size(outcomes)
        low, high = wilson_interval(share * count, count)
        held += low <= 0.6 <= high
        low, high = wilson_interval(share * starts * tries, starts * tries)
        naive += low <= 0.6 <= high
    assert 0.92 <= held / eval_sets <= 0.98
    assert (naive / eval_sets < 0.85) == (tries > 1)


def test_one_start_under_many_seeds_is_one_start() -> None:
    """As on a bandit's evaluation set: other seeds, the same two states."""
    left = [make_trajectory([make_turn(1.0)], seed=n, success=True) for n in range(20)]
    right = [make_trajectory([make_turn(0.0)], seed=n) for n in range(20, 40)]
    sides = [replace(t, initial_state={"first": t.success}) for t in (*left, *right)]
    result = summarize([TrajectoryGroup(t.seed, t.seed, (t,)) for t in sides])
    assert (result.success, result.count) == (0.5, 40)
    assert (result.low, result.high) == pytest.approx(wilson_interval(1, 2))


def test_summary_without_thoughts_or_difficulties() -> None:
    result = summarize(eval_set([True, False]))
    assert result.thought_accuracy is None
    assert result.by_difficulty == {}


def test_summary_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="environment failed in all"):
        summarize([make_group([1.0], broken=[0])])


def test_paired_difference() -> None:
    before, after = [False] * 6 + [True] * 4, [True] * 3 + [False] * 3 + [True] * 3 + [False]
    difference = paired_difference(summarize(eval_set(before)), summarize(eval_set(after)))
    assert difference.mean == pytest.approx(0.2)
    # Gains are 3 × 1, 1 × −1 and 6 × 0: sample variance 3.6 / 9.
    half = 1.96 * math.sqrt(3.6 / 9 / 10)
    assert (difference.low, difference.high) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-3)


def test_paired_difference_wants_the_same_starts() -> None:
    with pytest.raises(ValueError, match="same evaluation set"):
        paired_difference(
            summarize(eval_set([True, False])), summarize(eval_set([True, False], first_seed=1))
        )


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_a_policy_does_not_differ_from_itself(outcomes: list[bool]) -> None:
    difference = paired_difference(summarize(eval_set(outcomes)), summarize(eval_set(outcomes)))
    assert (difference.low, difference.mean, difference.high) == (0.0, 0.0, 0.0)
