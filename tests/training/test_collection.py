"""Dynamic sampling: when it stops, and which groups it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.rollout import group_table
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.seeds import group_seeds
from ragen_pl.training import collection
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.collection import (
    CollectedGroups,
    Collector,
    DynamicSampling,
    collect_groups,
)
from ragen_pl.types import Selection, TrajectoryGroup
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
        collection,
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


class Chooser(RolloutCallback):
    """Give each group a weight, with or without saying why, and note what is decided."""

    def __init__(self, weight: float, reason: str = "") -> None:
        super().__init__()
        self.weight, self.reason_given = weight, reason
        self.decided: Selection | None = None

    def on_rollout_end(self, trainer: Any, module: Any, groups: list[TrajectoryGroup]) -> Selection:
        weights = tuple((self.weight,) * len(group.trajectories) for group in groups)
        return Selection(weights, (self.reason_given,) * len(groups) if self.reason_given else ())

    def on_selection(
        self, trainer: Any, module: Any, groups: list[TrajectoryGroup], selection: Selection
    ) -> None:
        self.decided = selection


def test_every_callback_is_told_what_all_decided_and_why() -> None:
    choosers = [Chooser(0.5, "kept: half"), Chooser(2.0), Chooser(3.0, "kept: more")]
    trainer: Any = SimpleNamespace(callbacks=choosers, lightning_module=None)
    nothing: Any = None
    collector = Collector(trainer, nothing)
    groups = [make_group([0.0, 1.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    weights = collector.policy_weights(CollectedGroups(groups, [True, False]))
    assert weights == [[3.0, 3.0], [0.0, 0.0]]
    for chooser in choosers:
        assert chooser.decided is not None
        assert chooser.decided.weights == ((3.0, 3.0), (0.0, 0.0))
        first, second = chooser.decided.reasons
        assert first == "kept: half; kept: more"
        assert second.startswith("dropped: all members have the same return, and dynamic")


class Wrong(RolloutCallback):
    """Return anything as the selection."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    def on_rollout_end(self, trainer: Any, module: Any, groups: list[TrajectoryGroup]) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1.0, 0.0], "a list of 2\n  it must return a Selection"),
        (Selection(((1.0, 1.0),)), "weights of 1 groups\n"),
        (Selection(((1.0, 1.0), (1.0,))), "a tuple of 1 as the weights of group 1\n"),
        (Selection((1.0, 1.0)), "as the weights of group 0\n"),  # type: ignore[arg-type]
        (Selection(((1.0, 1.0), (1.0, -1.0))), "-1.0 as a weight of group 1\n"),
        (Selection(((1.0, float("nan")), (1.0, 1.0))), "nan as a weight of group 0\n"),
        (Selection(((1.0, 1.0), (1.0, 1.0)), ("kept",)), "1 reasons\n"),
    ],
)
def test_a_callback_that_returns_no_selection_of_the_groups_is_named(given: Any, told: str) -> None:
    trainer: Any = SimpleNamespace(callbacks=[Wrong(given)], lightning_module=None)
    nothing: Any = None
    collector = Collector(trainer, nothing)
    groups = [make_group([0.0, 1.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    with pytest.raises(ConfigError, match=rf"^{__name__}.Wrong.on_rollout_end returned ") as caught:
        collector.policy_weights(CollectedGroups(groups, [True, True]))
    assert told in str(caught.value)
