"""Rollouts that are lost, since the environment failed in every trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning.pytorch import Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.training.trainer import announce
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
                in the first one of the run; or if no first prompt leaves room for an answer.
        """
        lost = _all_lost(groups)
        if lost is None:
            self.in_a_row = 0
            return False
        if lost.no_room:
            raise ConfigError(lost.error)
        self.in_a_row += 1
        told = (
            f"environment {', '.join(env.name for env in envs)} failed in every one of "
            f"{lost.count} trajectories, so that there is nothing to learn from\n"
            f"  for example: {lost.error}"
        )
        if self.in_a_row >= _MOST_LOST:
            raise ConfigError(
                f"{told}\n  mend the environment (the warnings above name its other errors); "
                "if a checkpoint was saved, --ckpt_path last then goes on from it"
            )
        record_shared_fault(FaultKind.ROLLOUT, told.replace("\n  ", "; "))
        announce(trainer, f"warning: {told}\n  no update in this iteration")
        return True


def check_room(groups: Sequence[TrajectoryGroup]) -> None:
    """Refuse an evaluation in which no first prompt leaves room for an answer.

    Every rank must call it. An evaluation in which the environment failed throughout is left
    without a result, and the run continues.

    Raises:
        ConfigError: on all ranks, if none does; the message names the key.
    """
    lost = _all_lost(groups)
    if lost is not None and lost.no_room:
        raise ConfigError(lost.error)


@dataclass(frozen=True, slots=True)
class _Lost:
    """The reason why no trajectory of a collection has a turn."""

    count: int
    no_room: bool
    """Whether no first prompt fitted: an error of the configuration."""
    error: str
    """That of one trajectory."""


def _all_lost(groups: Sequence[TrajectoryGroup]) -> _Lost | None:
    """Return why no trajectory on any rank has a turn; None if one has or none was wanted."""
    own = [trajectory for group in groups for trajectory in group.trajectories]
    faults = [(t.counts, t.error) for t in own if not t.is_trainable]
    # An environment's error explains more than a first prompt that does not fit.
    worst = min(faults, key=lambda fault: fault[0], default=None)
    parts = gather_objects((len(own), len(faults), worst))
    reasons = [reason for _, _, reason in parts if reason is not None]
    total = sum(played for played, _, _ in parts)
    if not reasons or sum(failed for _, failed, _ in parts) < total:
        return None
    no_room, error = min(reasons, key=lambda reason: reason[0])
    return _Lost(total, no_room, error)
