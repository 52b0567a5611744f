"""Base class of callbacks with hooks around each rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.types import Evaluation, Selection, TrainingBatch, TrajectoryGroup

RESERVED = ("iteration", "phase", "step")
"""Columns of ``results.json`` beside the metrics, and the loggers' x-axis
(``callbacks.IterationAxis``)."""


class RolloutCallback(Callback):
    """Base class for callbacks with hooks around each RL rollout.

    The hooks run inside the training data loader, where ``self.log`` does not work: pass metrics to
    ``record`` instead. The first hooks run before ``on_train_start``, so do any set-up in
    ``setup``. No rollout hook runs in a warm-start iteration. The hooks are called on every rank; a
    hook that communicates must do so on every rank.
    """

    reason: str | None = None
    """Why this callback stopped the run; None while it has not."""
    discard: bool = False
    """Whether to discard the current rollout; the iteration then ends without an update of policy
    or critic. Set it in ``on_rollout_end``, to the same value on every rank."""
    iteration: int = 0
    """Iteration of the current rollout, counted from 0 over the whole run, warm start included."""

    _recorded: dict[str, float] = {}  # noqa: RUF012  replaced, never changed: none has to set it

    def begin_iteration(self, iteration: int) -> None:
        """Set ``iteration`` and ``discard`` for a new rollout; not a hook to override."""
        self.iteration, self.discard = iteration, False

    def check_run(self, trainer: Trainer, rollout: RolloutConfig) -> None:
        """Refuse a run in which this callback could not do its work; called before the weights are
        built.

        Raises:
            ValueError: with the value that makes it impossible, and what to set instead.
        """

    def on_teaching_progress(self, trainer: Trainer, module: LightningModule, text: str) -> None:
        """Called now and then with what the warm start's teacher is doing, if that takes long; on
        the ranks that it teaches on."""

    def on_teaching_end(
        self, trainer: Trainer, module: LightningModule, metrics: Mapping[str, float]
    ) -> None:
        """Called on every rank with what the warm start's teacher measured in an environment."""

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Called before a rollout of ``num_trajectories`` on this rank; ``iteration`` and
        ``discard`` are already set."""

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Called after every turn with the number of this rank's trajectories that have ended."""

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Called after each collection with the groups that this rank collected.

        A rollout is a single collection without dynamic sampling. With it, a rollout may take
        several, and some of their groups are dropped before ``on_rollout_end``.
        """

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection | None:
        """Called once per iteration with this rank's groups, before any filter and before packing.

        Returns:
            One policy weight per trajectory, or None to leave the weights unchanged. The weights of
            several callbacks are multiplied.
        """
        return None

    def on_selection(
        self,
        trainer: Trainer,
        module: LightningModule,
        groups: list[TrajectoryGroup],
        selection: Selection,
    ) -> None:
        """Called after every ``on_rollout_end`` with this rank's groups and what all callbacks
        together decided about them, also if the rollout is discarded."""

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        """Called once per iteration with the advantages and log-probs of the trajectories that this
        rank sampled, before optimizer batches are made of them.

        It is not called for a discarded rollout, nor if the policy learns by imitation alone.
        """

    def on_already_finished(self, trainer: Trainer, module: LightningModule) -> None:
        """Called instead of the training loop when a run is resumed after its last iteration.

        There is no rollout then, and neither ``on_train_start`` nor ``on_train_end`` is called.
        """

    def on_evaluation_start(
        self, trainer: Trainer, module: LightningModule, description: str
    ) -> None:
        """Called before an explicit evaluation, such as that of the final policy."""

    def on_evaluation_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        policy: str,
        evaluation: Evaluation,
        iterations: int | None,
    ) -> None:
        """Called after an explicit evaluation with this rank's groups.

        Args:
            trainer: The trainer.
            module: The module.
            policy: Who played: ``random``, ``expert``, ``untrained``, ``warm-started``, ``final``.
            evaluation: The episodes.
            iterations: Iterations that trained the policy; None for actors without a model.
        """

    def on_evaluation_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Called after every turn of any evaluation with the number of trajectories that have
        ended."""

    def results(self) -> Mapping[str, Any]:
        """Return entries for ``results.json`` as plain data, by key."""
        return {}

    def record(self, metrics: Mapping[str, float]) -> None:
        """Store metrics until they can be logged; values must be the same on every rank.

        Non-finite values, such as the mean of nothing, are left out.

        Raises:
            ConfigError: for what is no number, or a name that ``results.json`` has for itself.
        """
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"{type(self).__name__}.record was given {metrics!r:.60}: give a dict of numbers, "
                '{"rollout/name": 1.0}'
            )
        numbers = {name: self._number(name, value) for name, value in metrics.items()}
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        self._recorded = {**self._recorded, **finite}

    def _number(self, name: object, value: object) -> float:
        place = f"{type(self).__name__}.record was given"
        if not isinstance(name, str) or name in RESERVED:
            raise ConfigError(f"{place} a metric named {name!r:.60}: give it another name")
        is_single = isinstance(value, torch.Tensor | np.ndarray) and math.prod(value.shape) == 1
        if isinstance(value, Real) or is_single:
            return float(value)  # type: ignore[arg-type]  # one number
        raise ConfigError(
            f"{place} {value!r:.60} for {name}: give a number, such as the mean of several"
        )

    @property
    def recorded(self) -> Mapping[str, float]:
        """The metrics that were recorded and not logged yet, by name."""
        return self._recorded

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log the metrics recorded during this epoch's rollout."""
        if batch_idx == 0 and self._recorded:
            # The values are equal on all ranks; sync_dist keeps Lightning from warning.
            pl_module.log_dict(
                self._recorded, on_step=False, on_epoch=True, batch_size=1, sync_dist=True
            )
            self._recorded = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the recorded metrics of an epoch without batches, where ``on_train_batch_start``
        is not called."""
        self.log_recorded(trainer)

    def log_recorded(self, trainer: Trainer) -> None:
        """Log the metrics that were recorded and not logged yet; not a hook to override."""
        if not self._recorded:
            return
        for logger in trainer.loggers:
            logger.log_metrics(self._recorded, step=trainer.current_epoch + 1)
        trainer.callback_metrics.update({k: torch.tensor(v) for k, v in self._recorded.items()})
        self._recorded = {}
