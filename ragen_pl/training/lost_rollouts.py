"""Rollouts that are lost, since the environment failed in every trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lightning.pytorch import Trainer

from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.stats import lost_rollout
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.training.callback import announce
from ragen_pl.types import TrajectoryGroup

_MOST_LOST = 3
"""Rollouts in a row without a single sound trajectory after which a run ends."""


class LostRollouts:
    """The number of rollouts in a row that were lost."""

    def __init__(self) -> None:
        self.in_a_row = _MOST_LOST - 1  # an environment that never worked is told at once

    def is_lost(
        self, trainer: Trainer, groups: Sequence[TrajectoryGroup], envs: Iterable[TextEnv]
    ) -> bool:
        """Take note of a rollout and return whether it is lost, so that the iteration has no
        update; every rank must call it.

        Args:
            trainer: The trainer.
            groups: This rank's groups.
            envs: The environments that were played, to be named.

        Raises:
            ConfigError: on all ranks, if that has happened in ``_MOST_LOST`` rollouts in a row, or
                in the first one of the run.
        """
        told = lost_rollout(groups, ", ".join(env.name for env in envs))
        if told is None:
            self.in_a_row = 0
            return False
        self.in_a_row += 1
        if self.in_a_row >= _MOST_LOST:
            raise ConfigError(
                f"{told}\n  mend the environment (the warnings above name its other errors); "
                "if a checkpoint was saved, --ckpt_path last then goes on from it"
            )
        record_shared_fault(FaultKind.ROLLOUT, told.replace("\n  ", "; "))
        announce(trainer, f"warning: {told}\n  no update in this iteration")
        return True
