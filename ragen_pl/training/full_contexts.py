"""Rollouts most of whose trajectories end because the context is full."""

from __future__ import annotations

from collections.abc import Sequence

from lightning.pytorch import Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.callback import announce
from ragen_pl.types import StopReason, TrajectoryGroup

_MOST = 0.5
"""Share of the trajectories above which it is told."""


class FullContexts:
    """A warning, once in a command, about trajectories that end as ``CONTEXT_FULL``.

    Args:
        rollout: The budgets of a trajectory.
    """

    def __init__(self, rollout: RolloutConfig) -> None:
        self.rollout, self._is_told = rollout, False

    def take_note(
        self, trainer: Trainer, groups: Sequence[TrajectoryGroup], iteration: int
    ) -> None:
        """Warn if most trajectories of a rollout ended so; every rank must call it.

        Args:
            trainer: The trainer.
            groups: This rank's groups.
            iteration: The iteration that played them.
        """
        if self._is_told:
            return
        ends = [each.stop_reason for group in groups for each in group.trajectories]
        full = sum(end is StopReason.CONTEXT_FULL for end in ends)
        counts = gather_objects((full, len(ends)))
        full, total = (sum(column) for column in zip(*counts, strict=True))
        if full <= _MOST * total:
            return
        self._is_told = True
        memory, limit = self.rollout.memory, self.rollout.memory.limit(self.rollout.max_context)
        key = "max_context" if limit == self.rollout.max_context else "memory.budget"
        further = (
            "" if memory.cuts else ", or let a memory cut the past (data.rollout.memory: Window)"
        )
        announce(
            trainer,
            f"warning: {full} of {total} trajectories of iteration {iteration + 1} ended as "
            f"context_full: their next turn had no room in data.rollout.{key}, {limit} tokens. "
            "Raise it, lower data.rollout.max_response_tokens or max_turns" + further + "; doctor "
            "measures what whole trajectories take",
        )
