"""The starts of a run: which groups each iteration collects, of one environment or of a mixture."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import (
    Curriculum,
    choose_starts,
    restored_progress,
    saved_progress,
)
from ragen_pl.rollout.curriculum.checked import check_choice, learned, pool_size_of, tally_of
from ragen_pl.rollout.mixture import Mixture
from ragen_pl.rollout.seeds import SEEDS_PER_RUN, SeedStream, group_seeds
from ragen_pl.rollout.tallies import Tallies, sum_tallies
from ragen_pl.types import TrajectoryGroup

_TRIED_FOR_DIFFICULTIES = 64
"""Number of training seeds, the run's first ones, of which two must differ in difficulty before a
curriculum chooses by it."""


class StartStream:
    """The starts of a run, in the order in which they are collected, and the progress made at them.

    What comes next is a pure function of the run's seed and of the saved state, and equal on every
    rank.

    Args:
        envs: The environments to train in, by name.
        curriculum: The choice among the seed stream's starts.
        mixture: The mixture, which has seed streams and curricula of its own; None with a single
            environment.
        groups: Groups of one collection, over all ranks.
        first_iteration: The first iteration that collects.
        run_seed: Seed of the run.

    Raises:
        ValueError: when a curriculum has nothing to choose between.
    """

    def __init__(
        self,
        envs: Mapping[str, TextEnv],
        curriculum: Curriculum,
        mixture: Mixture | None,
        *,
        groups: int,
        first_iteration: int,
        run_seed: int,
    ) -> None:
        first_seed = run_seed * SEEDS_PER_RUN
        curricula = {"": curriculum} if mixture is None else mixture.curricula
        for name, chooser in curricula.items():
            tried = range(first_seed, first_seed + _TRIED_FOR_DIFFICULTIES)
            check_choice(chooser, envs[name], tried)
        self.envs, self.curriculum, self.mixture = envs, curriculum, mixture
        self.groups, self.first_iteration, self.run_seed = groups, first_iteration, run_seed
        self._progress: Tallies = {}
        self._seeds = SeedStream()

    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        """Return the group seeds of one collection of an RL iteration, over all ranks.

        Every rank must call it, and gets the same ones.
        """
        if self.mixture is not None:
            return self.mixture.group_seeds(iteration, collection, self.groups)
        position = self._seeds.position(iteration - self.first_iteration, self._pool_size)
        pool = group_seeds(self.run_seed, position, self._pool_size, collection)
        rng = random.Random(f"curriculum {self.run_seed} {iteration} {collection}")
        (env,) = self.envs.values()
        chosen = choose_starts(self.curriculum, env, pool, self.groups, self._progress, rng)
        first_id = collection * self.groups
        return [replace(start, group_id=first_id + place) for place, start in enumerate(chosen)]

    def learn(self, played: Sequence[TrajectoryGroup]) -> None:
        """Take note of all that an iteration played, on all ranks; every rank must call it.

        Args:
            played: This rank's groups, those that dynamic sampling drops among them.
        """
        if self.mixture is not None:
            self.mixture.learn(played)
            return
        tallies = sum_tallies(gather_objects(tally_of(self.curriculum, played)))
        self._progress = learned(self.curriculum, self._progress, tallies)

    @property
    def chooses_starts(self) -> bool:
        """Whether the curriculum chooses among more starts than are played."""
        if self.mixture is not None:
            return self.mixture.chooses_starts
        return self._pool_size > self.groups or self.curriculum.by_start

    @property
    def running_success(self) -> dict[str, float]:
        """The success rate at each difficulty by which the curriculum chooses; empty if it keeps
        none. In a mixture, names are those of the environment and of the difficulty."""
        if self.mixture is not None:
            return self.mixture.running_success
        if self.curriculum.by_start:
            return {}
        return {name: tally.success for name, tally in self._progress.items()}

    @property
    def _pool_size(self) -> int:
        """Seeds of one collection, among which the curriculum chooses."""
        return pool_size_of(self.curriculum, self.groups)

    def state_dict(self, iteration: int) -> dict[str, Any]:
        """Return the position in the seed stream and the curriculum's progress as plain data.

        Args:
            iteration: The next iteration.
        """
        since = max(0, iteration - self.first_iteration)
        state: dict[str, Any] = {
            "seeds": self._seeds.state_dict(since, self._pool_size),
            **saved_progress(self.curriculum, self._progress),
        }
        if self.mixture is not None:
            state["mixture"] = self.mixture.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the seed stream, even if the number of groups per collection or the curriculum
        has changed."""
        self._seeds.load_state_dict(state["seeds"])
        self._progress = restored_progress(self.curriculum, state)
        if self.mixture is not None and "mixture" in state:
            self.mixture.load_state_dict(state["mixture"])
