"""Collecting again: when it stops, what it keeps, and that nothing is played twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.rollout import stats as rollout_stats
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.demonstrations import MAX_DEMONSTRATIONS, WarmStart
from ragen_pl.training import collection
from ragen_pl.training.collection import (
    FIRST_DEMONSTRATION,
    SEEDS_PER_RUN,
    Collected,
    DynamicSampling,
    SeedStream,
    collect_enough,
    group_seeds,
)
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group
from tests.support.ranks import on_ranks

WANTED = 4


class World:
    """Play groups of which only those of chosen identities carry signal."""

    def __init__(self, with_signal: Sequence[int]) -> None:
        self.with_signal = set(with_signal)
        self.calls: list[list[int]] = []

    def play(self, share: Sequence[GroupSeed]) -> list[TrajectoryGroup]:
        self.calls.append([start.group_id for start in share])
        return [
            make_group(
                [0.0, float(start.group_id in self.with_signal)],
                group_id=start.group_id,
                seed=start.seed,
            )
            for start in share
        ]


def starts_of(nth: int) -> list[GroupSeed]:
    return group_seeds(0, 0, WANTED, nth)


def ids(collected: Collected) -> list[int]:
    return [group.group_id for group in collected.groups]


def test_without_it_there_is_one_collection_and_every_group_may_teach() -> None:
    world = World([])
    collected = collect_enough(world.play, starts_of, None)
    assert world.calls == [[0, 1, 2, 3]]
    assert (ids(collected), collected.has_signal) == ([0, 1, 2, 3], [True] * 4)


@pytest.mark.parametrize(
    ("with_signal", "collections", "kept", "has_signal"),
    [
        ([0, 1, 2, 3], 1, [0, 1, 2, 3], [1, 1, 1, 1]),
        # Enough after two; the surplus, group 7, goes.
        ([1, 2, 5, 6, 7], 2, [1, 2, 5, 6], [1, 1, 1, 1]),
        ([1, 6, 9, 10], 3, [1, 6, 9, 10], [1, 1, 1, 1]),
        # Never enough: filled up with the first ones without.
        ([6, 9], 3, [0, 1, 6, 9], [0, 0, 1, 1]),
        ([], 3, [0, 1, 2, 3], [0, 0, 0, 0]),
    ],
)
def test_it_collects_until_enough_groups_carry_signal(
    with_signal: list[int], collections: int, kept: list[int], has_signal: list[int]
) -> None:
    world = World(with_signal)
    collected = collect_enough(world.play, starts_of, DynamicSampling(max_collections=3))
    assert world.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]][:collections]
    assert (ids(collected), collected.has_signal) == (kept, [bool(b) for b in has_signal])


@pytest.mark.parametrize("bound", [2, 3])
def test_the_bound_acts(bound: int) -> None:
    world = World([])
    collect_enough(world.play, starts_of, DynamicSampling(max_collections=bound))
    assert len(world.calls) == bound


@pytest.mark.parametrize("with_signal", [[0, 1, 2, 3], [1, 2, 5, 6, 7], [0, 2, 4], []])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_decide_alike_and_share_evenly(
    monkeypatch: pytest.MonkeyPatch, with_signal: list[int], ranks: int
) -> None:
    dynamic = DynamicSampling(max_collections=3)
    alone = collect_enough(World(with_signal).play, starts_of, dynamic)
    worlds = [World(with_signal) for _ in range(ranks)]
    parts = on_ranks(
        ranks,
        lambda rank: collect_enough(worlds[rank].play, starts_of, dynamic),
        monkeypatch,
        collection,
        rollout_stats,
    )
    together = sorted(
        (group.group_id, group.seed, teaches)
        for part in parts
        for group, teaches in zip(part.groups, part.has_signal, strict=True)
    )
    assert together == [
        (group.group_id, group.seed, teaches)
        for group, teaches in zip(alone.groups, alone.has_signal, strict=True)
    ]
    assert len({len(world.calls) for world in worlds}) == 1
    sizes = [len(part.groups) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_no_start_and_no_identity_is_used_twice() -> None:
    seen: set[int] = set()
    for iteration in range(50):
        identities: set[int] = set()
        for nth in range(4):
            chosen = group_seeds(3, iteration * 20, 20, nth)
            assert not seen & {start.seed for start in chosen}
            assert not identities & {start.group_id for start in chosen}
            seen |= {start.seed for start in chosen}
            identities |= {start.group_id for start in chosen}
    assert min(seen) >= 3 * SEEDS_PER_RUN
    assert max(seen) < 3 * SEEDS_PER_RUN + FIRST_DEMONSTRATION


def test_the_first_collections_are_those_of_a_run_that_collects_once() -> None:
    """Runs with and without dynamic sampling begin every iteration alike."""
    stream = SeedStream()
    places = [stream.place(iteration, 8) for iteration in range(5)]
    flat = [start.seed for place in places for start in group_seeds(1, place, 8, 0)]
    assert flat == [SEEDS_PER_RUN + i for i in range(40)]


def test_no_start_comes_again_where_a_run_goes_on_with_other_numbers_of_groups() -> None:
    stream, seen, iteration = SeedStream(), set[int](), 0
    for num_groups in (8, 2, 16, 16, 4):
        for _ in range(3):
            for nth in range(2):
                chosen = group_seeds(0, stream.place(iteration, num_groups), num_groups, nth)
                assert not seen & {start.seed for start in chosen}
                seen |= {start.seed for start in chosen}
            iteration += 1
        saved = stream.state_dict(iteration, num_groups)
        stream = SeedStream()
        stream.load_state_dict(saved)


def test_the_last_collection_allowed_stays_below_the_demonstrations() -> None:
    assert group_seeds(0, 0, 8, 31)[-1].seed < FIRST_DEMONSTRATION


@given(st.integers(0, 2**32 - 1), st.integers(0, 10**6), st.integers(0, 31), st.integers(1, 64))
def test_no_run_of_any_seed_trains_on_a_eval_sets_seeds(
    run_seed: int, iteration: int, nth: int, groups: int
) -> None:
    eval_sets = range(FIRST_EVAL_SEED, SEEDS_PER_RUN)
    rl = group_seeds(run_seed, iteration, groups, nth)
    assert all(start.seed not in eval_sets for start in rl)
    # A hundred starts may be passed over for each demonstration, and a thousand more.
    first = run_seed * SEEDS_PER_RUN + FIRST_DEMONSTRATION
    demonstrations = range(first, first + 101 * MAX_DEMONSTRATIONS + 1001)
    assert demonstrations.stop <= eval_sets.start or demonstrations.start >= eval_sets.stop
    assert rl[-1].seed < demonstrations.start
    assert demonstrations.stop <= (run_seed + 1) * SEEDS_PER_RUN, "nor on another run's"


def test_more_demonstrations_than_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="demonstrations is 20000001; it may be at most 20000000"):
        WarmStart(demonstrations=MAX_DEMONSTRATIONS + 1)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"max_collections": 1}, "max_collections is 1.*null collects once"),
        ({"max_collections": 33}, "max_collections is 33"),
    ],
)
def test_bad_keys_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DynamicSampling(**keys)


def test_groups_of_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group_size is 1.*2 or more"):
        DynamicSampling().check(1)
