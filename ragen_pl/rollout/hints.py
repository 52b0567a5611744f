"""The hints of self-distillation in all environments of a run that can have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.self_distillation import (
    HintedTrajectory,
    HintWriter,
    SelfDistillation,
    hinted_lessons,
)
from ragen_pl.rollout.teachers import Lesson, TeachingTask
from ragen_pl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Hints:
    """The writer of hints into a run's trajectories, and into demonstrations that show what a hint
    is."""

    config: SelfDistillation
    names: tuple[str, ...]
    """The environments that can have hints."""
    demonstrated: tuple[str, ...]
    """Those of them whose expert demonstrates what a hint is; empty without lessons."""
    envs: Mapping[str, TextEnv]
    """All environments to train in, by name."""
    rollout_in: Mapping[str, RolloutConfig]
    """The limits of a trajectory in each, by name."""

    def trajectories(
        self,
        groups: Sequence[TrajectoryGroup],
        weights: Sequence[Sequence[float]],
        chats: Mapping[str, Chat],
        iteration: int,
    ) -> list[HintedTrajectory]:
        """Return the trajectories that are distilled, written again with hints.

        Args:
            groups: This rank's groups.
            weights: Weight of each trajectory in the policy loss, by group.
            chats: The chat protocols, by environment.
            iteration: The iteration that collected them.
        """
        written = list[HintedTrajectory]()
        for name in self.names:
            writer = HintWriter(self.envs[name], chats[name], self.rollout_in[name], self.config)
            own = [pair for pair in zip(groups, weights, strict=True) if pair[0].env == name]
            written += writer.hinted(
                [group for group, _ in own], [row for _, row in own], iteration
            )
        return written

    def lessons(
        self,
        chats: Mapping[str, Chat],
        difficulties: Mapping[str, tuple[str, ...]],
        first_seed: int,
    ) -> tuple[Lesson, ...]:
        """Return the demonstrations from which the policy learns what a hint is, divided evenly
        among the environments.

        Args:
            chats: The chat protocols, by environment.
            difficulties: Difficulties to demonstrate, by environment; all in one that is not named.
            first_seed: The first of the demonstrations' seeds.
        """
        lessons = list[Lesson]()
        for number, name in enumerate(self.demonstrated):
            count = len(range(number, self.config.lessons, len(self.demonstrated)))
            task = TeachingTask(
                *(self.envs[name], chats[name], self.rollout_in[name]),
                *(count, difficulties.get(name, ()), first_seed),
            )
            lessons += hinted_lessons(task) if count else ()
        return tuple(lessons)
