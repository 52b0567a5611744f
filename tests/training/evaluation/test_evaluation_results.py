"""Evaluation results against values computed by hand or by enumeration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.report.comparison import difference_of
from ragen_pl.training.evaluation.results import (
    PolicyResult,
    readable_evaluations,
    summarize,
)
from ragen_pl.training.evaluation.success_statistics import wilson_interval
from ragen_pl.types import FormatFault, StopReason, Trajectory, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn


def eval_set(outcomes: list[bool], first_seed: int = 0) -> list[TrajectoryGroup]:
    return [make_group([float(win)], seed=first_seed + i) for i, win in enumerate(outcomes)]


def test_summary() -> None:
    turns = [
        make_turn(1.0, thought_correct=True),
        make_turn(0.0, fault=FormatFault.NO_ANSWER, thought_correct=False),
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
    result = summarize(eval_set(outcomes))
    assert (result.low, result.high) == pytest.approx(wilson_interval(sum(outcomes), len(outcomes)))


def test_one_start_under_many_seeds_is_one_start() -> None:
    """As on a bandit's evaluation set: other seeds, the same two states."""
    left = [make_trajectory([make_turn(1.0)], seed=n, success=True) for n in range(20)]
    right = [make_trajectory([make_turn(0.0)], seed=n) for n in range(20, 40)]
    # The states hold the seed, as those of ``ReplayState`` do: only their keys are equal.
    sides = [replace(t, start_key=f"first: {t.success}") for t in (*left, *right)]
    result = summarize([TrajectoryGroup(t.seed, t.seed, (t,)) for t in sides])
    assert (result.success, result.count) == (0.5, 40)
    assert (result.low, result.high) == pytest.approx(wilson_interval(1, 2))
    assert result.repeated_seeds == {seed: 0 if seed < 20 else 20 for seed in range(40)}


def played_unevenly(outcomes: str) -> list[TrajectoryGroup]:
    """Return the evaluation of a set of starts, named by letters, with few distinct ones: a
    trajectory per letter, a capital for a success."""
    return [
        TrajectoryGroup(
            seed,
            seed,
            (
                replace(
                    make_trajectory(
                        [make_turn(float(each.isupper()))],
                        seed=seed,
                        success=each.isupper(),
                        difficulty="1" if each.lower() == "a" else "2",
                    ),
                    start_key=each.lower(),
                ),
            ),
        )
        for seed, each in enumerate(outcomes)
    ]


def test_every_number_counts_a_distinct_start_once() -> None:
    """``a`` is solved in five of six plays, ``b`` in none of one and ``c`` in one of one."""
    result = summarize(played_unevenly("AAAAAabC"))
    assert result.success == result.pass_at[1] == pytest.approx((5 / 6 + 0 + 1) / 3)
    assert result.mean_return == pytest.approx(result.success)
    assert result.by_difficulty == {"1": (pytest.approx(5 / 6), 1), "2": (0.5, 2)}
    assert result.count == 8


def test_where_all_or_nothing_succeeds_the_distinct_starts_count() -> None:
    ten = "aaaabbbcdefghij"
    for outcomes, solved, count in ((ten, 0, 10), (ten.upper(), 10, 10), ("aaaabbbc", 0, 8)):
        result = summarize(played_unevenly(outcomes))
        assert (result.low, result.high) == pytest.approx(wilson_interval(solved, count))


def test_a_comparison_gives_the_same_success() -> None:
    first, second = (
        PolicyResult(name, "default", 0.5, summarize(played_unevenly(outcomes)), fingerprint="8:ab")
        for name, outcomes in (("one", "AAAAAabC"), ("other", "aaaAAaBC"))
    )
    found = difference_of(first, second)
    assert found.first == pytest.approx(first.result.success)
    assert found.second == pytest.approx(second.result.success)
    assert found.paired.count == 3


def test_summary_without_thoughts_or_difficulties() -> None:
    result = summarize(eval_set([True, False]))
    assert result.thought_accuracy is None
    assert result.by_difficulty == {}


def test_summary_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="environment failed in all"):
        summarize([make_group([1.0], broken=[0])])


def test_pass_at_k_is_averaged_over_starts() -> None:
    """Of four tries one, none and two succeed; at the last start one try of four failed."""
    groups = [
        make_group([1.0, 0.0, 0.0, 0.0], group_id=0),
        make_group([0.0] * 4, group_id=1),
        make_group([1.0, 1.0, 0.0, 0.0], group_id=2, broken=[3]),
    ]
    found = summarize(groups).pass_at
    assert list(found) == [1, 2, 4]
    assert found[1] == pytest.approx((1 / 4 + 0 + 2 / 3) / 3)
    assert found[2] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert found[4] == pytest.approx(1 / 2)  # of the two starts that were tried four times
    assert list(summarize([make_group([1.0, 0.0, 1.0])]).pass_at) == [1, 2, 3]


def test_actions_are_compared_with_the_optimum_where_the_start_was_solved() -> None:
    """Two turns of one action each, against optima of 1 and 2; an unsolved start has no say."""

    def played(optimum: int | None, *, success: bool) -> Trajectory:
        made = make_trajectory([make_turn(), make_turn()], success=success)
        return replace(made, optimal_length=optimum)

    solved = [played(1, success=True), played(2, success=True), played(None, success=True)]
    found = summarize([TrajectoryGroup(0, 0, (*solved, played(9, success=False)))])
    assert found.action_ratio == pytest.approx((2 / 1 + 2 / 2) / 2)
    unknown = summarize([TrajectoryGroup(0, 0, (played(None, success=True),))])
    assert unknown.action_ratio is None


@pytest.mark.parametrize("odd", [None, [], [{}], [None, 3], "text"])
def test_what_another_version_wrote_does_not_hide_the_rest(odd: Any) -> None:
    result = summarize([make_group([0.0, 1.0], group_id=0)])
    own = PolicyResult("final", "default", 0.5, result).to_dict()
    content = {"evaluations": [*odd, own] if isinstance(odd, list) else odd}
    found, num_unreadable = readable_evaluations(content)
    assert [each.policy for each in found] == (["final"] if isinstance(odd, list) else [])
    assert num_unreadable == (len(odd) if isinstance(odd, list) else 0)
