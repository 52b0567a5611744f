"""Means over ranks that hold different numbers of items."""

from __future__ import annotations

import pytest

from ragen_pl.rollout import rank_means
from ragen_pl.rollout.rank_means import RankMeans
from tests.support.ranks import on_ranks


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

    for found in on_ranks(2, means, monkeypatch, rank_means):
        assert found == pytest.approx({"length": 12 / 5, "own": 0.5}, abs=1e-12)
