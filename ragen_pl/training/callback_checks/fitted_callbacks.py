"""Lightning's own callbacks, fitted to iterations: they act at the end of one, on what it measured.

Lightning would save and stop in the middle of an iteration, which can only be repeated as a whole,
and look at a metric in iterations that have not measured it: those of RL are missing in the warm
start, and a validation's keep their last values until the next one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, Timer
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ragen_pl.errors import ConfigError
from ragen_pl.training.trainer import ITERATION_PREFIXES, ends_after_this

_VALIDATION = "val/"


def fit_to_iterations(callback: Callback, eval_sets: Collection[str]) -> None:
    """Have Lightning's ``ModelCheckpoint``, ``EarlyStopping`` and ``Timer`` (``trainer.max_time``)
    act at the end of iterations, the first two in those that measured what they monitor. Of other
    callbacks nothing is changed.

    Args:
        callback: Any callback.
        eval_sets: Names of the run's evaluation sets.

    Raises:
        ConfigError: when the callback is told to act elsewhere, or to look at an evaluation set
            that the run does not have.
    """
    if isinstance(callback, Timer):
        # Between two updates it would drop the rest of the iteration, which counts as done.
        callback._interval = Interval.epoch
    if isinstance(callback, ModelCheckpoint):
        _save_at_the_end(callback)
    if isinstance(callback, ModelCheckpoint | EarlyStopping) and callback.monitor is not None:
        _check_eval_set(callback, callback.monitor, eval_sets)
        _look_where_measured(callback, callback.monitor)


def _save_at_the_end(callback: ModelCheckpoint) -> None:
    """Have a checkpoint saved at the end of an iteration, where Lightning would choose the place.

    It may choose a validation, which comes before that: a run that is resumed from there would
    train the iteration twice.
    """
    saves_within = callback._every_n_train_steps > 0 or callback._train_time_interval is not None
    is_elsewhere = callback._save_on_train_epoch_end is False
    if saves_within or callback.save_on_exception or is_elsewhere:
        raise ConfigError(
            f"{type(callback).__name__} saves in the middle of an iteration, which a resumed run "
            "would repeat on weights that it has trained already: leave out "
            "save_on_train_epoch_end, every_n_train_steps, train_time_interval and "
            "save_on_exception (a run saves checkpoints/last.ckpt and best.ckpt without it)"
        )
    callback._save_on_train_epoch_end = True


def _check_eval_set(callback: Callback, name: str, eval_sets: Collection[str]) -> None:
    """Check that the evaluation set of a validation's metric exists; of names without a set, such
    as ``val/mine``, a user's own callback may know."""
    parts = name.removeprefix(_VALIDATION).split("/")
    if name.startswith(_VALIDATION) and len(parts) > 1 and parts[0] not in eval_sets:
        known = (f"{_VALIDATION}{each}/{'/'.join(parts[1:])}" for each in eval_sets)
        raise ConfigError(
            f"{type(callback).__name__} monitors {name}, but there is no evaluation set "
            f"{parts[0]}: monitor {' or '.join(known)}"
        )


def _look_where_measured(callback: ModelCheckpoint | EarlyStopping, name: str) -> None:
    """Have a callback act in the iterations that measured its metric; of metrics with other names
    than a run's own it looks as Lightning has it."""
    if not name.startswith((_VALIDATION, *ITERATION_PREFIXES)):
        return
    if isinstance(callback, EarlyStopping):
        if callback._check_on_train_epoch_end is False and name.startswith(ITERATION_PREFIXES):
            raise ConfigError(
                f"{type(callback).__name__} monitors {name}, which is known at the end of an "
                "iteration alone: leave its check_on_train_epoch_end out"
            )
        callback._check_on_train_epoch_end = True
    if not isinstance(callback.on_train_epoch_end, _WhereMeasured):  # a second fit
        hook = _WhereMeasured(callback, name)
        callback.on_train_epoch_end = hook  # type: ignore[method-assign]


class _WhereMeasured:
    """A callback's ``on_train_epoch_end``, called in the iterations that measured its metric."""

    def __init__(self, callback: ModelCheckpoint | EarlyStopping, name: str) -> None:
        self._callback, self._name = callback, name
        self._seen: Tensor | None = None
        self._has_warned = False

    def __call__(self, trainer: Trainer, pl_module: LightningModule) -> None:
        value = trainer.callback_metrics.get(self._name)
        if value is None:
            self._warn(trainer)
        elif value is not self._seen:  # Lightning keeps the very tensor until the next one
            self._seen = value
            hook: Any = type(self._callback).on_train_epoch_end  # its own, which this stands before
            hook(self._callback, trainer, pl_module)

    def _warn(self, trainer: Trainer) -> None:
        """Say once that the metric is missing beside others of its kind, or in a whole run: it may
        be misspelled."""
        kind = _VALIDATION if self._name.startswith(_VALIDATION) else "rollout/"
        measured = sorted(trainer.callback_metrics)
        is_due = any(name.startswith(kind) for name in measured) or ends_after_this(trainer)
        if is_due and not self._has_warned:
            self._has_warned = True
            rank_zero_warn(
                f"{type(self._callback).__name__} monitors {self._name}, which iteration "
                f"{trainer.current_epoch + 1} has not measured; it acts in those that have. "
                f"Measured were {', '.join(measured)}"
            )
