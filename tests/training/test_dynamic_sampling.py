"""Dynamic sampling: when it stops, and which groups it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ragen_pl.rollout import group_table
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.seeds import group_seeds
from ragen_pl.training import dynamic_sampling
from ragen_pl.training.dynamic_sampling import CollectedGroups, DynamicSampling, collect_groups
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group
from tests.support.ranks import on_ranks

WANTED = 4


class World:
    """Groups of which only those with the given ids have signal."""

    def __init__(self, with_signal: Sequence[int]) -> None:
        self.with_signal = set(with_signal)
        self.calls: list[list[int]] = []

    def collect(self, seeds: Sequence[GroupSeed]) -> list[TrajectoryGroup]:
        self.calls.append([group.group_id for group in seeds])
        return [
            make_group(
                [0.0, float(group.group_id in self.with_signal)],
                group_id=group.group_id,
                seed=group.seed,
            )
            for group in seeds
        ]


def seeds_of(nth: int) -> list[GroupSeed]:
    return group_seeds(0, 0, WANTED, nth)


def ids(collected: CollectedGroups) -> list[int]:
    return [group.group_id for group in collected.groups]


def test_without_it_there_is_one_collection_and_every_group_trains_the_policy() -> None:
    world = World([])
    collected = collect_groups(world.collect, seeds_of, None)
    assert world.calls == [[0, 1, 2, 3]]
    assert (ids(collected), collected.trains_policy) == ([0, 1, 2, 3], [True] * 4)


@pytest.mark.parametrize(
    ("with_signal", "collections", "kept", "trains_policy"),
    [
        ([0, 1, 2, 3], 1, [0, 1, 2, 3], [1, 1, 1, 1]),
        # Enough after two collections; group 7 is surplus.
        ([1, 2, 5, 6, 7], 2, [1, 2, 5, 6], [1, 1, 1, 1]),
        ([1, 6, 9, 10], 3, [1, 6, 9, 10], [1, 1, 1, 1]),
        # Never enough: filled up with the first groups without signal.
        ([6, 9], 3, [0, 1, 6, 9], [0, 0, 1, 1]),
        ([], 3, [0, 1, 2, 3], [0, 0, 0, 0]),
    ],
)
def test_it_collects_until_enough_groups_have_signal(
    with_signal: list[int], collections: int, kept: list[int], trains_policy: list[int]
) -> None:
    world = World(with_signal)
    collected = collect_groups(world.collect, seeds_of, DynamicSampling(max_collections=3))
    assert world.calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]][:collections]
    assert (ids(collected), collected.trains_policy) == (kept, [bool(b) for b in trains_policy])


def test_groups_of_a_failed_environment_are_the_last_to_fill_up_with() -> None:
    def collect(seeds: Sequence[GroupSeed]) -> list[TrajectoryGroup]:
        return [
            make_group(
                [0.0, float(group.group_id == 7)],
                group_id=group.group_id,
                broken=(0, 1) if group.group_id < WANTED else (),
            )
            for group in seeds
        ]

    collected = collect_groups(collect, seeds_of, DynamicSampling(max_collections=2))
    assert (ids(collected), collected.trains_policy) == ([4, 5, 6, 7], [False] * 3 + [True])


@pytest.mark.parametrize("bound", [2, 3])
def test_the_bound_acts(bound: int) -> None:
    world = World([])
    collect_groups(world.collect, seeds_of, DynamicSampling(max_collections=bound))
    assert len(world.calls) == bound


@pytest.mark.parametrize("with_signal", [[0, 1, 2, 3], [1, 2, 5, 6, 7], [0, 2, 4], []])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_decide_alike_and_share_evenly(
    monkeypatch: pytest.MonkeyPatch, with_signal: list[int], ranks: int
) -> None:
    dynamic = DynamicSampling(max_collections=3)
    alone = collect_groups(World(with_signal).collect, seeds_of, dynamic)
    worlds = [World(with_signal) for _ in range(ranks)]
    parts = on_ranks(
        ranks,
        lambda rank: collect_groups(worlds[rank].collect, seeds_of, dynamic),
        monkeypatch,
        dynamic_sampling,
        group_table,
    )
    together = sorted(
        (group.group_id, group.seed, trains)
        for part in parts
        for group, trains in zip(part.groups, part.trains_policy, strict=True)
    )
    assert together == [
        (group.group_id, group.seed, trains)
        for group, trains in zip(alone.groups, alone.trains_policy, strict=True)
    ]
    assert len({len(world.calls) for world in worlds}) == 1
    sizes = [len(part.groups) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"max_collections": 1}, "max_collections is 1.*null collects once"),
        ({"max_collections": 33}, "max_collections is 33"),
    ],
)
def test_bad_keys_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicSampling(**keys)


def test_groups_of_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"group_size is 1.*2 or more"):
        DynamicSampling().check(1)
