"""Extend Lightning's callbacks by the hooks of a collection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ragen_pl.types import Selection, TrajectoryGroup

OF_ONE_ITERATION = ("rollout/", "train/", "collapse/")
"""Prefixes of the metrics that an iteration measures anew, or not at all."""


class RolloutCallback(Callback):
    """Be called around every collection of reinforcement learning, and log what was seen there.

    The hooks run inside the training loader, where ``self.log`` does not work, and the first ones
    before ``on_train_start``: set up in ``setup``, and hand metrics to ``record``. They do not run
    in warm-start iterations. Every rank runs them; a hook that gathers must do so on every rank.
    """

    reason: str | None = None
    """Why this callback stopped the run; None while it has not."""
    discard: bool = False
    """Whether nothing may be learned from the collection at hand, by the critic neither: the
    iteration then ends without an update. Set in ``on_rollout_end``, alike on every rank."""
    iteration: int = 0
    """Of the collection at hand, counted from 0 over the whole run, warm start included."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: dict[str, float] = {}

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Learn that a collection of ``num_trajectories`` on this rank begins."""
        self.iteration, self.discard = iteration, False

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Learn after every turn how many of this rank's trajectories have ended."""

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """See everything this rank has just played.

        A rollout is one collection; with dynamic sampling it is one or several, of which some
        groups are thrown away before ``on_rollout_end``.
        """

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection | None:
        """See this rank's groups, before any filter and before they are packed, once an iteration.

        Returns:
            One policy weight per trajectory, or None to leave them as they are. The weights of
            several callbacks are multiplied.
        """
        return None

    def on_nothing_left(self, trainer: Trainer, module: LightningModule) -> None:
        """Learn that all iterations lie behind the checkpoint that a run goes on from.

        Nothing is collected then, and neither ``on_train_start`` nor ``on_train_end`` is called.
        """

    def on_evaluation_start(
        self, trainer: Trainer, module: LightningModule, description: str
    ) -> None:
        """Learn that an explicit evaluation begins, such as that of the final policy."""

    def on_evaluation_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Learn after every turn of any evaluation how many trajectories have ended."""

    def facts(self) -> Mapping[str, Any]:
        """Return what belongs into ``results.json``, by name, as plain data."""
        return {}

    def record(self, metrics: Mapping[str, float]) -> None:
        """Keep metrics until they can be logged; values must be the same on every rank.

        Values that are not finite are left out: there was nothing to average.
        """
        self._recorded.update({k: float(v) for k, v in metrics.items() if math.isfinite(v)})

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log what the collection of this epoch recorded."""
        if batch_idx == 0 and self._recorded:
            # The values are equal on all ranks; syncing only tells Lightning so.
            pl_module.log_dict(
                self._recorded, on_step=False, on_epoch=True, batch_size=1, sync_dist=True
            )
            self._recorded = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log directly in an epoch without batches, where nothing else could."""
        if not self._recorded:
            return
        for logger in trainer.loggers:
            logger.log_metrics(self._recorded, step=trainer.current_epoch + 1)
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in self._recorded.items()})
        self._recorded = {}


def rollout_callbacks(trainer: Trainer) -> Iterator[RolloutCallback]:
    """Iterate over the trainer's callbacks that have rollout hooks."""
    callbacks: Sequence[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return (callback for callback in callbacks if isinstance(callback, RolloutCallback))


def forget_last_iteration(trainer: Trainer) -> None:
    """Drop the last iteration's metrics, as one begins: what this one does not measure is absent,
    where Lightning would keep the last value for ever."""
    found = trainer.callback_metrics
    for name in [name for name in found if name.startswith(OF_ONE_ITERATION)]:
        del found[name]


def may_stop(trainer: Trainer) -> bool:
    """Whether the trainer would heed ``should_stop`` in the iteration at hand.

    Until ``trainer.min_epochs`` and ``min_steps`` are reached Lightning goes on whatever is asked
    for, and an iteration that it insists on is there to learn.
    """
    epochs, steps = trainer.min_epochs or 0, trainer.min_steps or 0
    return trainer.current_epoch >= epochs and trainer.global_step >= steps


def is_discarded(trainer: Trainer) -> bool:
    """Whether the collection at hand must not be learned from, once ``on_rollout_end`` was called:
    the run ends with it, or a callback says so."""
    ends = trainer.should_stop and may_stop(trainer)
    return ends or any(callback.discard for callback in rollout_callbacks(trainer))


def is_done(iterations: int, trainer: Trainer) -> bool:
    """Whether a run of so many iterations is as long as it should be; -1 is without end."""
    length = trainer.max_epochs
    return length is not None and 0 <= length <= iterations


def announce(trainer: Trainer, text: str) -> None:
    """Print a line once, on rank 0, without breaking a live progress bar."""
    if not trainer.is_global_zero:
        return
    if trainer.progress_bar_callback is None:
        print(text, flush=True)
    else:
        trainer.progress_bar_callback.print(text)
