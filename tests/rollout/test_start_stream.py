"""The starts of a run: their order, their progress, and what is saved."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout import curriculum as curricula
from ragen_pl.rollout import start_stream as streams
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import (
    Curriculum,
    LearningProgress,
    LevelReplay,
    TargetSuccess,
    Uniform,
    choice,
)
from ragen_pl.rollout.seeds import group_seeds
from ragen_pl.rollout.start_stream import SingleEnvStream
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn
from tests.support.ranks import on_ranks
from tests.support.toy_env import Lamp, NamedLamp


def make_starts(
    curriculum: Curriculum, env: TextEnv | None = None, *, groups: int = 4, run_seed: int = 3
) -> SingleEnvStream:
    """Make the starts of a run whose first iteration is a warm start."""
    envs = {"": env or NamedLamp()}
    return SingleEnvStream(envs, curriculum, groups=groups, first_iteration=1, run_seed=run_seed)


def test_without_a_curriculum_the_seeds_are_those_of_the_stream() -> None:
    starts = make_starts(Uniform())
    for iteration in range(1, 6):
        for nth in range(3):
            assert starts.group_seeds(iteration, nth) == group_seeds(3, (iteration - 1) * 4, 4, nth)
    state = {"seeds": {"iteration": 4, "position": 16}, "progress": {}, "by_start": False}
    assert starts.state_dict(5) == state
    assert not starts.chooses_starts


def test_the_stream_begins_after_the_warm_start() -> None:
    assert make_starts(Uniform()).state_dict(0)["seeds"] == {"iteration": 0, "position": 0}


def test_no_start_is_played_twice_whatever_is_resumed() -> None:
    seen: set[int] = set()
    iteration, state = 1, None
    plans: Sequence[tuple[Curriculum, int]] = [
        (TargetSuccess(), 4),
        (TargetSuccess(), 9),
        (Uniform(), 9),
        (TargetSuccess(pool_factor=2), 3),
    ]
    for curriculum, groups in plans:
        starts = make_starts(curriculum, groups=groups)
        if state is not None:
            starts.load_state_dict(state)
        for _ in range(4):
            for nth in range(2):
                chosen = starts.group_seeds(iteration, nth)
                ids = [start.group_id for start in chosen]
                assert ids == list(range(nth * groups, (nth + 1) * groups))
                assert not seen & {start.seed for start in chosen}
                seen |= {start.seed for start in chosen}
            iteration += 1
        state = starts.state_dict(iteration)


def test_the_choice_is_a_function_of_run_iteration_and_collection() -> None:
    def chosen(run_seed: int, iteration: int, nth: int) -> list[int]:
        starts = make_starts(TargetSuccess(), run_seed=run_seed)
        position = (iteration - 1) * 16
        first = group_seeds(run_seed, position, 16, nth)[0].seed
        return [start.seed - first for start in starts.group_seeds(iteration, nth)]

    assert chosen(0, 1, 0) == chosen(0, 1, 0)
    assert (
        len({tuple(chosen(*place)) for place in [(0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)]}) > 2
    )


def test_ranks_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"seeds": {"iteration": 0, "position": 0}, "progress": {"lit": [1, 4], "dark": [4, 4]}}

    def choose(rank: int = 0) -> list[GroupSeed]:
        starts = make_starts(TargetSuccess())
        starts.load_state_dict(state)
        return starts.group_seeds(2, 0)

    alone = choose()
    assert on_ranks(2, choose, monkeypatch, curricula) == [alone, alone]


@pytest.mark.parametrize("kind", [TargetSuccess, LearningProgress, LevelReplay])
def test_ranks_learn_what_one_learns_and_a_saved_progress_goes_on(
    kind: Callable[[], Curriculum], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: a choice may hang on it."""
    draw = random.Random(1)
    played = [
        make_group([draw.random() for _ in range(5)], group_id=number, seed=number)
        for number in range(12)
    ]
    named = [
        replace(
            group,
            trajectories=tuple(
                replace(each, difficulty=("lit", "dark")[group.seed // 2 % 2], success=n % 3 == 0)
                for n, each in enumerate(group.trajectories)
            ),
        )
        for group in played
    ]

    def run(groups: Sequence[TrajectoryGroup]) -> tuple[Any, list[GroupSeed]]:
        starts = make_starts(kind(), groups=8)
        for _ in range(2):
            starts.learn(groups)
        return starts.state_dict(3), starts.group_seeds(3, 0)

    alone = run(named)
    assert len(alone[0]["progress"]) == (12 if kind is LevelReplay else 2)
    parts = on_ranks(2, lambda rank: run(named[rank::2]), monkeypatch, streams, choice)
    assert parts == [alone, alone]
    resumed = make_starts(kind(), groups=8)
    resumed.load_state_dict(json.loads(json.dumps(alone[0])))
    assert resumed.state_dict(3) == alone[0]
    assert resumed.group_seeds(3, 0) == alone[1]


def test_progress_from_before_there_were_curricula_is_none() -> None:
    starts = make_starts(TargetSuccess())
    starts.load_state_dict({"seeds": {"iteration": 3, "position": 12}})
    assert starts.running_success == {}
    assert min(start.seed for start in starts.group_seeds(4, 0)) >= group_seeds(3, 12, 1, 0)[0].seed


@pytest.mark.parametrize("kinds", [(TargetSuccess(), LevelReplay()), (LevelReplay(), Uniform())])
def test_progress_of_another_kind_of_curriculum_is_none(
    kinds: tuple[Curriculum, Curriculum],
) -> None:
    """Names of difficulties are no seeds, and seeds no difficulties."""
    before, after = kinds
    starts = make_starts(before)
    name = "3" if before.by_start else "lit"
    starts.load_state_dict({"progress": {name: [1.0, 2.0, 0.5, 0]}, "by_start": before.by_start})
    assert starts.state_dict(4)["progress"] == {name: [1.0, 2.0, 0.5, 0]}
    resumed = make_starts(after)
    resumed.load_state_dict(starts.state_dict(4))
    assert len(resumed.group_seeds(4, 0)) == 4
    assert resumed.running_success == {}


def test_an_environment_without_difficulties_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"curriculum TargetSuccess chooses by difficulty, but Lamp names no"
    ):
        make_starts(TargetSuccess(), Lamp())


def test_what_is_saved_is_plain() -> None:
    starts = make_starts(TargetSuccess())
    lit = [
        make_trajectory([make_turn(1.0)], success=won, difficulty="lit") for won in (True, False)
    ]
    starts.learn([TrajectoryGroup(0, 1, tuple(lit))])
    state = json.loads(json.dumps(starts.state_dict(4)))
    assert list(state["progress"]) == ["lit"]
    again = make_starts(TargetSuccess())
    again.load_state_dict(state)
    assert again.running_success == starts.running_success == {"lit": 0.5}
    assert again.group_seeds(4, 0) == starts.group_seeds(4, 0)
