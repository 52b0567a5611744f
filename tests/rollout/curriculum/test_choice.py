"""Starts are chosen alike on every rank, and a choice of anything else is an error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import (
    UNKNOWN,
    Curriculum,
    TargetSuccess,
    Uniform,
    choice,
    choose_starts,
)
from ragen_pl.rollout.stats import Tally
from tests.support.faulty import FaultyLamp, always
from tests.support.ranks import on_ranks
from tests.support.toy_env import NamedLamp

POOL = [GroupSeed(number, 100 + number) for number in range(20)]
"""More starts than are wanted."""


class SilentLamp(NamedLamp):
    """A lamp that nobody may ask for difficulties."""

    def difficulty_of(self, seed: int) -> str:
        raise AssertionError("asked")


def test_uniform_asks_for_nothing_and_takes_what_comes() -> None:
    pool, played = POOL[:7], {"a": Tally(9.0, 10.0)}
    assert Uniform().pool_size(7) == 7
    assert choose_starts(Uniform(), SilentLamp(), pool, 7, played, random.Random(0)) == pool
    assert Uniform().learn(played, played) == {}


def test_a_start_at_which_the_environment_fails_is_of_unknown_difficulty() -> None:
    env = FaultyLamp("reset", RuntimeError("away"))
    asked: list[Sequence[str]] = []

    class Noting(TargetSuccess):
        def choose(self, pool: Any, difficulties: Sequence[str], *rest: Any) -> list[GroupSeed]:
            asked.append(difficulties)
            return super().choose(pool, difficulties, *rest)

    chosen = choose_starts(Noting(), env, POOL, 10, {}, random.Random(0))
    assert asked == [["dark", UNKNOWN] * 10]
    assert len(chosen) == 10
    assert sum(start.seed % 2 for start in chosen) == 5, "as many as without a curriculum"


def test_an_environment_that_fails_throughout_leaves_the_choice_to_chance() -> None:
    env = FaultyLamp("reset", RuntimeError("away"), always)
    chosen = choose_starts(TargetSuccess(), env, POOL, 10, {}, random.Random(0))
    assert [start.weight for start in chosen] == [1.0] * 10


def test_ranks_agree_where_a_server_fails_on_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = [[], []]

    def choose(rank: int) -> list[GroupSeed]:
        class Own(NamedLamp):
            def difficulty_of(self, seed: int) -> str:
                asked[rank].append(seed)
                if rank == 1 and seed % 3 == 0:
                    raise RuntimeError("away")
                return "odd" if seed % 5 else "even"

        return choose_starts(TargetSuccess(), Own(), POOL, 8, {}, random.Random(3))

    one, other = on_ranks(2, choose, monkeypatch, choice)
    assert one == other
    seeds = [start.seed for start in POOL]
    assert asked == [seeds[0::2], seeds[1::2]], "each asks for its share"


@pytest.mark.parametrize(
    "chosen", [POOL[:4], POOL[:6], [POOL[0]] * 5, [*POOL[:4], GroupSeed(0, 1)]]
)
def test_a_choice_of_other_starts_is_an_error(chosen: list[GroupSeed]) -> None:
    class Wrong(Curriculum):
        def choose(self, *args: Any) -> list[GroupSeed]:
            return chosen

    with pytest.raises(ConfigError, match=r"Wrong, whose choose returned \d starts; it must .* 5"):
        choose_starts(Wrong(), NamedLamp(), POOL, 5, {}, random.Random(0))
