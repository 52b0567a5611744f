"""The refusal of collections in which no trajectory has a turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.rollout import stats as rollout_stats
from ragen_pl.rollout.stats import RankMeans, lost_rollout
from ragen_pl.types import StopReason, TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory
from tests.support.ranks import on_ranks


def failed(reason: StopReason, error: str, members: int = 2) -> TrajectoryGroup:
    one = replace(make_trajectory([], stop_reason=reason), error=error)
    return TrajectoryGroup(0, 0, (one,) * members)


BROKEN = failed(StopReason.ENV_ERROR, "reset raised OSError: away")
NO_ROOM = failed(StopReason.CONTEXT_FULL, "rollout.max_context is 8")


def check(ranks: list[list[TrajectoryGroup]], monkeypatch: pytest.MonkeyPatch) -> None:
    def one(rank: int) -> None:
        told = lost_rollout(ranks[rank], "sokoban")
        if told is not None:
            raise ConfigError(told)

    on_ranks(len(ranks), one, monkeypatch, rollout_stats)


def test_one_trajectory_on_any_rank_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    check([[BROKEN], [NO_ROOM, make_group([1.0])]], monkeypatch)
    check([[BROKEN], [make_group([1.0, 0.0], broken=[0])], []], monkeypatch)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ([[BROKEN], [BROKEN]], "environment sokoban failed in every one of 4 .*\n.*OSError: away"),
        ([[NO_ROOM], []], "^rollout.max_context is 8$"),
        ([[NO_ROOM], [BROKEN]], "sokoban failed in every one of 4 .*\n.*OSError: away"),
        ([[BROKEN, NO_ROOM], []], "sokoban failed in every one of 4 .*\n.*OSError: away"),
    ],
)
def test_none_on_any_rank_is_an_error(
    ranks: list[list[TrajectoryGroup]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=told):
        check(ranks, monkeypatch)


def test_means_weigh_every_item_of_every_rank_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        [("length", 9.0, 3.0), ("length", 1.0, 1.0)],
        [("length", 2.0, 1.0), ("own", 0.5, 1.0)],
    ]

    def means(rank: int) -> dict[str, float]:
        found = RankMeans()
        for name, value, count in items[rank]:
            found.add(name, value, count)
        found.add("nothing", 0.0, 0)
        return found.means()

    for found in on_ranks(2, means, monkeypatch, rollout_stats):
        assert found == pytest.approx({"length": 12 / 5, "own": 0.5}, abs=1e-12)
