"""The starts of one environment, as its curriculum chooses them, and the progress made at them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import (
    Curriculum,
    choose_starts,
    restored_progress,
    saved_progress,
)
from ragen_pl.rollout.curriculum.checked import check_choice, learned, pool_size_of, tally_of
from ragen_pl.rollout.seeds import SEEDS_PER_RUN, group_seeds
from ragen_pl.rollout.tallies import Tallies, sum_tallies
from ragen_pl.types import TrajectoryGroup

_TRIED_FOR_DIFFICULTIES = 64
"""Number of training seeds, the run's first ones, of which two must differ in difficulty before a
curriculum chooses by it."""


class EnvStarts:
    """The starts of one environment of a run.

    Args:
        envs: The environments to train in, by name; worker processes may take their places.
        name: The environment's name; empty without a mixture.
        curriculum: The choice among the starts of its seed stream.
        run_seed: Seed of the run.

    Raises:
        ValueError: when the curriculum has nothing to choose between.
    """

    def __init__(
        self, envs: Mapping[str, TextEnv], name: str, curriculum: Curriculum, run_seed: int
    ) -> None:
        first_seed = run_seed * SEEDS_PER_RUN
        check_choice(
            curriculum, envs[name], range(first_seed, first_seed + _TRIED_FOR_DIFFICULTIES)
        )
        self.envs, self.name, self.curriculum, self.run_seed = envs, name, curriculum, run_seed
        self._progress: Tallies = {}

    def pool_size(self, wanted: int) -> int:
        """Return the seeds of one collection, among which the curriculum chooses."""
        return pool_size_of(self.curriculum, wanted)

    def choose(
        self, wanted: int, *, position: int, iteration: int, collection: int
    ) -> list[GroupSeed]:
        """Choose the starts of one collection, over all ranks; every rank must call it, and gets
        the same ones.

        Args:
            wanted: Groups to collect.
            position: Position in the seed stream at which the iteration begins.
            iteration: The iteration, which with the collection seeds the choice.
            collection: Index of the collection within the iteration.
        """
        key = f"curriculum {self.name}" if self.name else "curriculum"
        env, chosen, played = self.envs[self.name], list[GroupSeed](), set[str]()
        # A remembered start is not chosen again in a further collection of the iteration.
        for number in range(0 if self.curriculum.by_start else collection, collection + 1):
            progress = {name: tally for name, tally in self._progress.items() if name not in played}
            pool = group_seeds(self.run_seed, position, self.pool_size(wanted), number)
            rng = random.Random(f"{key} {self.run_seed} {iteration} {number}")
            chosen = choose_starts(self.curriculum, env, pool, wanted, progress, rng)
            played |= {str(start.seed) for start in chosen}
        return chosen

    def tally(self, played: Sequence[TrajectoryGroup]) -> Tallies:
        """Count this rank's groups, for ``learn``."""
        return tally_of(self.curriculum, played)

    def learn(self, tallies: Iterable[Tallies]) -> None:
        """Take note of what an iteration played, as all ranks have counted it."""
        self._progress = learned(self.curriculum, self._progress, sum_tallies(tallies))

    @property
    def running_success(self) -> dict[str, float]:
        """The success rate at each difficulty by which the curriculum chooses; empty if it keeps
        none."""
        if self.curriculum.by_start:
            return {}
        return {difficulty: tally.success for difficulty, tally in self._progress.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        return saved_progress(self.curriculum, self._progress)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the progress, unless another kind of curriculum has made it."""
        self._progress = restored_progress(self.curriculum, state)
