"""Starts are chosen alike on every rank, and a choice of anything else is an error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
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
from ragen_pl.rollout.mixture import Mixture, MixtureConfig
from ragen_pl.rollout.start_stream import SingleEnvStream, StartStream
from ragen_pl.rollout.tallies import Tally
from tests.support.doubles import make_group
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

    told = (
        r"Wrong.choose returned \d starts, \d different ones.*\n  it must return 5 different ones"
    )
    with pytest.raises(ConfigError, match=told):
        choose_starts(Wrong(), NamedLamp(), POOL, 5, {}, random.Random(0))


# --- a curriculum of one's own --------------------------------------------------------------------


TEXT_WEIGHT: Any = (0, 100, "1")


class Whole(Curriculum):
    """Chooses the first ones, of twice as many."""

    def pool_size(self, wanted: int) -> int:
        return 2 * wanted

    def choose(self, pool: Any, difficulties: Any, wanted: int, *args: Any) -> Any:
        return list(pool)[:wanted]


def giving(method: str, given: Any) -> Curriculum:
    """Make a curriculum one of whose methods returns something, or raises it."""

    def own(self: Curriculum, *args: Any) -> Any:
        if isinstance(given, Exception):
            raise given
        return given

    made: Curriculum = type("Wrong", (Whole,), {method: own})()
    return made


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("choose", IndexError("no start"), r"Wrong\.choose raised IndexError: no start.*called as"),
        ("choose", None, r"Wrong\.choose returned None\n  it must return a list of GroupSeed"),
        ("choose", [1, 2, 3, 4, 5], r"a list of 5 with 1 in it"),
        (
            "choose",
            [GroupSeed(*TEXT_WEIGHT)] * 5,
            r"with the weights \['1'.*positive and finite",
        ),
        ("candidates", KeyError("a"), r"Wrong\.candidates raised KeyError"),
        (
            "candidates",
            POOL[:3],
            r"Wrong\.candidates returned 3 starts\n  .* at least 5",
        ),
        ("candidates", "all", r"Wrong\.candidates returned a value of type str"),
    ],
)
def test_what_breaks_a_choice_is_told_by_class_and_method(
    method: str, given: Any, told: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){told}"):
        choose_starts(giving(method, given), NamedLamp(), POOL, 5, {}, random.Random(0))


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("pool_size", 2.5, r"Wrong\.pool_size returned 2.5\n  it must return an integer"),
        ("pool_size", ZeroDivisionError("x"), r"Wrong\.pool_size raised ZeroDivisionError"),
        ("tally", [1], r"Wrong\.tally returned a list of 1\n  it must return a dict of Tally"),
        ("learn", None, r"Wrong\.learn returned None"),
        ("learn", {"a": 0.5}, r"Wrong\.learn returned 0.5 for 'a'"),
        ("learn", {"a": Tally(float("nan"), 1.0)}, r"Wrong\.learn returned Tally\(successes=nan"),
        ("learn", TypeError("x"), r"Wrong\.learn raised TypeError"),
        ("check", TypeError("x"), r"Wrong\.check raised TypeError"),
        ("check", ValueError("nothing to choose"), "^nothing to choose$"),
    ],
)
@pytest.mark.parametrize("in_mixture", [False, True])
def test_what_breaks_a_stream_of_starts_is_told_by_class_and_method(
    method: str, given: Any, told: str, in_mixture: bool
) -> None:
    curriculum = giving(method, given)
    envs = {"": NamedLamp()} if not in_mixture else {"a": NamedLamp(), "b": NamedLamp()}

    def run() -> None:
        stream: StartStream
        if in_mixture:
            stream = Mixture(envs, MixtureConfig(), curriculum, groups=2, run_seed=0)
        else:
            stream = SingleEnvStream(envs, curriculum, groups=2, first_iteration=0, run_seed=0)
        stream.group_seeds(0, 0)
        stream.learn([replace(make_group([1.0, 0.0]), env=name) for name in envs])

    with pytest.raises(ConfigError, match=told):
        run()
