"""What a curriculum is, and the one that takes every start as it comes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.tallies import Tallies, tally_by_difficulty, tally_by_start
from ragen_pl.types import TrajectoryGroup

UNKNOWN = ""
"""Difficulty of a start for which the environment names none."""


class Curriculum(ABC):
    """A choice of the starts that are collected next.

    The constructor's arguments are the configuration and never change. What a run learns about its
    starts, the *progress*, is a tally per difficulty, which is passed in and saved with the run.
    All methods are pure functions, called with equal arguments on every rank.
    """

    by_start: ClassVar[bool] = False
    """Whether the progress is a tally per start, by its seed, instead of one per difficulty."""

    def tally(self, groups: Sequence[TrajectoryGroup]) -> Tallies:
        """Count what was played, as ``learn`` takes it."""
        return tally_by_start(groups) if self.by_start else tally_by_difficulty(groups)

    def candidates(self, pool: Sequence[GroupSeed], progress: Tallies) -> list[GroupSeed]:
        """Return the starts to choose from: the pool, or further ones with negative group ids."""
        return list(pool)

    def pool_size(self, wanted: int) -> int:
        """Return the number of candidates from which ``wanted`` starts are chosen."""
        return wanted

    @abstractmethod
    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        """Choose starts without replacement; not called where there are no more than are wanted.

        Args:
            pool: The candidates, in the order of the seed stream.
            difficulties: Their difficulties; ``UNKNOWN`` where the environment names none.
            wanted: Number of starts to choose.
            progress: Success so far.
            rng: Source of all randomness.

        Returns:
            The chosen ones. The ``weight`` of each is the probability that ``Uniform`` would have
            chosen it over the probability of this choice, for estimates that do not depend on the
            curriculum.
        """

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Return the progress after an iteration.

        Args:
            progress: The progress before it.
            played: Tally of all that the iteration played, on all ranks, over every collection.
        """
        return {}

    def check(self, env: TextEnv, seeds: Iterable[int]) -> None:  # noqa: B027 (optional)
        """Check before a run that there is something to choose between.

        Args:
            env: The training environment.
            seeds: Training seeds to try.

        Raises:
            ValueError: if there is not; the message says what to do.
        """


@dataclass(frozen=True)
class Uniform(Curriculum):
    """Every start of the seed stream, in its order: the environment's own mix of difficulties."""

    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        return list(pool[:wanted])


def difficulty_of(env: CheckedEnv, seed: int) -> str:
    """Return the difficulty of a start; ``UNKNOWN`` if the environment fails or names none."""
    try:
        return env.difficulty_of(seed)
    except EnvError:
        return UNKNOWN
