"""Callbacks of Lightning that cannot do their work here, with what does it instead.

The update is not Lightning's own, an iteration can only be repeated as a whole, and what is
sampled, scored and exported are the weights themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    ProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    Timer,
    WeightAveraging,
)
from lightning.pytorch.callbacks.timer import Interval

from ragen_pl.errors import ConfigError
from ragen_pl.training.trainer import ITERATION_PREFIXES

_AVERAGES = (
    "averages weights, but rollouts, scores and policy/last are of the weights themselves: leave "
    "it out (model.optimization.final_lr_fraction lowers the learning rate towards the end)"
)
_INSTEAD: dict[type[Callback], str] = {
    StochasticWeightAveraging: _AVERAGES,
    WeightAveraging: _AVERAGES,
    GradientAccumulationScheduler: "accumulates Lightning's own updates, which there are none of: "
    "set model.optimization.tokens_per_micro_batch instead",
    BatchSizeFinder: "tries batch sizes of a DataLoader, which there is none of: set "
    "model.optimization.tokens_per_micro_batch instead (the command plan says what fits)",
    LearningRateFinder: "raises the learning rate of Lightning's own updates, which there are none "
    "of: set model.optimization.lr and imitation_lr instead",
    ModelPruning: "prunes weights before there are any: leave it out",
    BackboneFinetuning: "freezes a part named backbone, which there is none of: set model.lora, or "
    "model.optimization.train_embeddings to false, instead",
    SpikeDetection: "needs a loss that training_step returns, and it returns none: steps whose "
    "gradient is not finite are skipped without it, and the alarm watches the rest (echo_trap)",
    OnExceptionCheckpoint: "saves in the middle of an iteration, which a resumed run would repeat "
    "on weights that it has trained already: set checkpoints.every_n_iterations to 1 instead",
}
"""Classes that are refused, subclasses included, with the reason and the remedy."""


def refuse_unfit_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks of Lightning's that could not do their work in a run, and have its
    ``ModelCheckpoint`` save and its ``Timer`` (``trainer.max_time``) stop at the end of iterations.

    Raises:
        ConfigError: for the first of them, with what to set instead.
    """
    for callback in callbacks:
        for kind, why in _INSTEAD.items():
            if isinstance(callback, kind):
                raise ConfigError(f"{type(callback).__name__} {why}")
        if isinstance(callback, ModelCheckpoint):
            _save_at_the_end(callback)
        if isinstance(callback, Timer):
            # Between two updates it would drop the rest of the iteration, which counts as done.
            callback._interval = Interval.epoch
        if isinstance(callback, EarlyStopping):
            _check_metric(callback)


def refuse_second_display(callbacks: Iterable[Callback]) -> None:
    """Refuse another progress bar beside the command's own display.

    Raises:
        ConfigError: naming its class.
    """
    for callback in callbacks:
        if isinstance(callback, ProgressBar):
            raise ConfigError(
                f"{type(callback).__name__} is a second progress bar beside the run's own, whose "
                "keys are below display: leave it out"
            )


def _save_at_the_end(callback: ModelCheckpoint) -> None:
    """Have a checkpoint saved at the end of an iteration, where Lightning would choose the place.

    It may choose a validation, which comes before that: a run that is resumed from there would
    train the iteration twice.

    Raises:
        ConfigError: when the callback is told to save elsewhere.
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


def _check_metric(callback: EarlyStopping) -> None:
    """Refuse to look for the metrics of an iteration before its end, or strictly, since those of RL
    are not there in the warm start."""
    is_of_iteration = callback.monitor.startswith(ITERATION_PREFIXES)
    if is_of_iteration and (callback.strict or callback._check_on_train_epoch_end is not True):
        raise ConfigError(
            f"{type(callback).__name__} monitors {callback.monitor}, which is known at the end of "
            "an iteration alone, and not in every one: set its check_on_train_epoch_end to true "
            "and its strict to false"
        )
