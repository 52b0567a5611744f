"""The starts of an evaluation set, and their overlap with those of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED, overlap
from tests.envs.contract.test_trial_episode import Stairs
from tests.support.held_out import eval_seeds

TRAINING = range(256)


class Numbered(Stairs):
    """Start from the seed, of which there is no split; some seeds raise."""

    modulus, broken = 1 << 32, frozenset[int]()

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        super().reset(**given)
        np.random.RandomState(given["seed"])  # which takes 32 bits
        if given["seed"] - FIRST_EVAL_SEED in self.broken:
            raise OSError("no such board")
        self.stair = given["seed"] % self.modulus
        return self.render_text(), {}


class Few(Numbered):
    modulus = 10


def test_an_evaluation_set_has_seeds_of_its_own() -> None:
    env = Numbered()
    seeds = eval_seeds(env, 300)
    assert seeds == list(range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + 300))
    assert FIRST_EVAL_SEED % 20 == 0
    assert overlap(env, seeds, env, TRAINING) == (0, 300)


@pytest.mark.parametrize(
    ("eval_set", "env", "found"),
    [
        (Few(), Few(), (10, 10)),
        (Bandit(), Bandit(split="eval"), (2, 2)),
        (Bandit("named", split="eval"), Bandit("named"), (0, 16)),
        (Sokoban(split="eval"), Sokoban(), (0, 64)),
        (Sokoban(symbols="letters"), Sokoban(), (5, 64)),
        (FrozenLake(split="eval"), FrozenLake(), (0, 64)),
    ],
)
def test_starts_that_training_has_too_are_counted(
    eval_set: TextEnv, env: TextEnv, found: tuple[int, int]
) -> None:
    """Another look of a room is the same room: of 64 training rooms a few come again by chance."""
    assert overlap(eval_set, eval_seeds(eval_set, 64), env, TRAINING) == found


def test_seeds_that_raise_are_passed_over_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Brittle(Numbered):
        broken = frozenset({3, 1003, 7})

    seeds = eval_seeds(Brittle(), 20)
    assert [seed - FIRST_EVAL_SEED for seed in seeds[:8]] == [0, 1, 2, 2003, 4, 5, 6, 1007]
    assert [seed % 20 for seed in seeds] == list(range(20))
    (record,) = caplog.records
    assert (
        "stairs raised in reset for 3 of an evaluation set's seeds, such as 4278190083 (OSError: "
        "no such" in (record.getMessage())
    )
    assert overlap(Brittle(), range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + 8), Few(), []) == (0, 6)


def test_an_environment_that_always_raises_is_an_error() -> None:
    class Broken(Numbered):
        broken = frozenset(range(0, 64_000, 1000))

    with pytest.raises(
        ValueError, match=r"Broken gave an evaluation set no start: 64 seeds .* OSError: no s"
    ):
        eval_seeds(Broken(), 2)


def test_repeats_are_the_first_of_their_tries() -> None:
    seeds = eval_seeds(Few(), 25)
    assert seeds[:10] == list(range(FIRST_EVAL_SEED, FIRST_EVAL_SEED + 10))
    assert seeds[10:] == list(range(FIRST_EVAL_SEED + 10, FIRST_EVAL_SEED + 25))


@pytest.mark.parametrize("size", [0, 1 << 24])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size: {size} is not between 1 and "):
        eval_seeds(Few(), size)


def test_the_environment_is_left_as_it_was() -> None:
    env = Few()
    eval_seeds(env, 3)
    assert not vars(env)
