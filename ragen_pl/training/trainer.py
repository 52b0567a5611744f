"""Functions of Lightning's trainer that the loop and callbacks share: its callbacks, its folder, an
iteration's metrics, its end, its display."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.visible_text import visible
from ragen_pl.training.callback import RolloutCallback

T = TypeVar("T", bound=Callback)

ITERATION_PREFIXES = ("rollout/", "teacher/", "train/", "collapse/", "time/")
"""Prefixes of the metrics of a single iteration, which are not carried over to the next one."""


def all_callbacks(trainer: Trainer) -> list[Callback]:
    """Return the trainer's callbacks in the order of their hooks."""
    return trainer.callbacks  # type: ignore[attr-defined, no-any-return]


def run_dir_of(trainer: Trainer) -> Path:
    """Return the run folder, which every output of a run goes into."""
    return Path(trainer.default_root_dir)


def rollout_callbacks(trainer: Trainer) -> Iterator[RolloutCallback]:
    """Iterate over the trainer's callbacks that have rollout hooks."""
    return (each for each in all_callbacks(trainer) if isinstance(each, RolloutCallback))


def refuse_double_metrics(trainer: Trainer) -> None:
    """Raise an error if two callbacks have recorded one metric of a rollout: the mean of both would
    be logged.

    Raises:
        ConfigError: naming both.
    """
    owners: dict[str, str] = {}
    for callback in rollout_callbacks(trainer):
        for name in callback.recorded:
            if name in owners:
                raise ConfigError(
                    f"{type(callback).__name__} records {name}, which {owners[name]} records, too: "
                    "give it another name"
                )
            owners[name] = type(callback).__name__


def find_callback(trainer: Trainer, kind: type[T]) -> T | None:
    """Return the trainer's first callback of a class, or None."""
    return next((each for each in all_callbacks(trainer) if isinstance(each, kind)), None)


def clear_iteration_metrics(trainer: Trainer) -> None:
    """Remove the previous iteration's metrics when a new one begins.

    Otherwise Lightning would keep the old value of a metric that the new iteration does not
    measure.
    """
    metrics = trainer.callback_metrics
    for name in [name for name in metrics if name.startswith(ITERATION_PREFIXES)]:
        del metrics[name]


def may_stop(trainer: Trainer, iterations: int | None = None) -> bool:
    """Return whether the trainer would act on ``should_stop`` after this many iterations, which are
    those that are complete where nothing is given.

    Lightning ignores it, and iterations train as usual, until ``trainer.min_epochs`` and
    ``min_steps`` are reached.
    """
    complete = trainer.current_epoch if iterations is None else iterations
    epochs, steps = trainer.min_epochs or 0, trainer.min_steps or 0
    return complete >= epochs and trainer.global_step >= steps


def is_discarded(trainer: Trainer) -> bool:
    """Return whether the current rollout is discarded: the run stops, or a callback discards it.

    Call it after every ``on_rollout_end`` hook.
    """
    stops = trainer.should_stop and may_stop(trainer)
    return stops or any(callback.discard for callback in rollout_callbacks(trainer))


def is_done(iterations: int, trainer: Trainer) -> bool:
    """Return whether a run of this many iterations has reached ``trainer.max_epochs``; -1 means no
    limit."""
    max_epochs = trainer.max_epochs
    return max_epochs is not None and 0 <= max_epochs <= iterations


def ends_after_this(trainer: Trainer) -> bool:
    """Return whether the run ends with the iteration that is ending; for ``on_train_epoch_end``."""
    iterations = trainer.current_epoch + 1
    has_no_steps_left = 0 <= trainer.max_steps <= trainer.global_step
    stops = trainer.should_stop and may_stop(trainer, iterations)
    return is_done(iterations, trainer) or has_no_steps_left or stops


def announce(trainer: Trainer, text: str) -> None:
    """Print a line once, on rank 0, without breaking a live progress bar."""
    if not trainer.is_global_zero:
        return
    text = visible(text)
    if trainer.progress_bar_callback is None:
        print(text, flush=True)
    else:
        trainer.progress_bar_callback.print(text)
