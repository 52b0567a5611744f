"""The choice of trajectories for a page: as many as fit, of everything some."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.report.recorded_trajectories import EVALUATION, ROLLOUT, Entry
from ragen_pl.report.trajectory_choice import choose


def entry(source: str, iteration: int, group: int, member: int = 0, **facts: object) -> Entry:
    known = {
        "path": Path(f"{source}-{iteration}.jsonl"),
        "offset": 0,
        "size": 1,
        "source": source,
        "iteration": iteration,
        "policy": "training",
        "eval_set": "default" if source == EVALUATION else None,
        "temperature": 1.0,
        "env": "sokoban",
        "seed": group,
        "group": group,
        "member": member,
        "difficulty": str(group % 3),
        "success": group % 2 == 0,
    }
    return Entry(**(known | facts))  # type: ignore[arg-type]


ROLLOUTS = [entry(ROLLOUT, i, g, m) for i in range(10, 110, 10) for g in range(4) for m in range(5)]
VALIDATIONS = [entry(EVALUATION, i, g) for i in (25, 50, 75, 100) for g in range(60)]


@given(st.integers(0, 500))
def test_never_more_than_the_limit_and_none_left_over(limit: int) -> None:
    everything = [*ROLLOUTS, *VALIDATIONS]
    chosen = choose(everything, limit)
    assert len(chosen) <= limit
    assert chosen == [each for each in everything if each in chosen]
    if limit >= len(everything):
        assert chosen == everything
    elif limit >= 10:
        assert len(chosen) > limit - 9  # a bundle holds at most five, one of each kind may not fit


def test_groups_stay_whole_and_iterations_are_spread() -> None:
    chosen = choose(ROLLOUTS, 25)
    assert set(Counter((e.iteration, e.group) for e in chosen).values()) == {5}
    iterations = [each.iteration for each in chosen]
    assert {10, 100} <= set(iterations)
    assert len(set(iterations)) == 5


def test_a_start_is_followed_through_all_evaluations() -> None:
    chosen = choose(VALIDATIONS, 24)
    assert set(Counter(each.seed for each in chosen).values()) == {4}
    assert {each.success for each in chosen} == {True, False}
    assert {each.difficulty for each in chosen} == {"0", "1", "2"}


def test_starts_that_every_evaluation_kept_come_first() -> None:
    thinned = [entry(EVALUATION, 25, g) for g in (50, 51)]
    chosen = choose([*thinned, *(entry(EVALUATION, 50, g) for g in range(60))], 4)
    assert {50, 51} <= {each.seed for each in chosen}


def test_what_one_source_does_not_need_goes_to_the_other() -> None:
    few = ROLLOUTS[:10]
    chosen = choose([*few, *VALIDATIONS], 100)
    assert [each for each in chosen if each.source == ROLLOUT] == few
    assert len(chosen) > 95


def test_a_group_larger_than_the_page_is_thinned() -> None:
    assert len(choose([entry(ROLLOUT, 10, 0, m) for m in range(50)], 7)) == 7
