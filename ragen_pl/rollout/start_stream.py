"""The starts of a run: which groups each iteration collects. Those of a mixture: ``mixture``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import Curriculum
from ragen_pl.rollout.env_starts import EnvStarts
from ragen_pl.rollout.seeds import SeedStream
from ragen_pl.types import TrajectoryGroup


class StartStream(ABC):
    """The starts of a run, in the order in which they are collected, and the progress made at them.

    What comes next is a pure function of the run's seed and of the saved state, and equal on every
    rank.
    """

    @abstractmethod
    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        """Return the group seeds of one collection of an RL iteration, over all ranks.

        Every rank must call it, and gets the same ones.
        """

    @abstractmethod
    def learn(self, played: Sequence[TrajectoryGroup]) -> None:
        """Take note of all that an iteration played, on all ranks; every rank must call it.

        Args:
            played: This rank's groups, those that dynamic sampling drops among them.
        """

    @property
    def reward_scales(self) -> Mapping[str, float]:
        """The factors of the rewards that train, by environment."""
        return {"": 1.0}

    @property
    @abstractmethod
    def chooses_starts(self) -> bool:
        """Whether a curriculum chooses among more starts than are played."""

    @property
    @abstractmethod
    def running_success(self) -> dict[str, float]:
        """The success rate at each difficulty by which a curriculum chooses; in a mixture by names
        such as ``sokoban/2-3``."""

    @abstractmethod
    def state_dict(self, iteration: int) -> dict[str, Any]:
        """Return the position in the seed stream and the curriculum's progress as plain data.

        Args:
            iteration: The next iteration.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, even if the number of groups per collection or the
        curriculum has changed."""


class SingleEnvStream(StartStream):
    """The starts of a run in a single environment.

    Args:
        envs: The environment, by its name ``""``.
        curriculum: The choice among the seed stream's starts.
        groups: Groups of one collection, over all ranks.
        first_iteration: The first iteration that collects.
        run_seed: Seed of the run.

    Raises:
        ValueError: when the curriculum has nothing to choose between.
    """

    def __init__(
        self,
        envs: Mapping[str, TextEnv],
        curriculum: Curriculum,
        *,
        groups: int,
        first_iteration: int,
        run_seed: int,
    ) -> None:
        self.groups, self.first_iteration = groups, first_iteration
        self._starts = EnvStarts(envs, "", curriculum, run_seed)
        self._seeds = SeedStream()

    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        position = self._seeds.position(iteration - self.first_iteration, self._pool_size)
        chosen = self._starts.choose(
            self.groups, position=position, iteration=iteration, collection=collection
        )
        first_id = collection * self.groups
        return [replace(start, group_id=first_id + place) for place, start in enumerate(chosen)]

    def learn(self, played: Sequence[TrajectoryGroup]) -> None:
        self._starts.learn(gather_objects(self._starts.tally(played)))

    @property
    def chooses_starts(self) -> bool:
        return self._pool_size > self.groups or self._starts.curriculum.by_start

    @property
    def running_success(self) -> dict[str, float]:
        return self._starts.running_success

    @property
    def _pool_size(self) -> int:
        return self._starts.pool_size(self.groups)

    def state_dict(self, iteration: int) -> dict[str, Any]:
        since = max(0, iteration - self.first_iteration)
        seeds = self._seeds.state_dict(since, self._pool_size)
        return {"seeds": seeds, **self._starts.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "seeds" in state:  # not in a checkpoint of a mixture
            self._seeds.load_state_dict(state["seeds"])
        self._starts.load_state_dict(state)
