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
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    OnExceptionCheckpoint,
    ProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)

from ragen_pl.errors import ConfigError

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
    """Refuse callbacks of Lightning's that could not do their work in a run.

    Raises:
        ConfigError: for the first of them, with what to set instead.
    """
    for callback in callbacks:
        for kind, why in _INSTEAD.items():
            if isinstance(callback, kind):
                raise ConfigError(f"{type(callback).__name__} {why}")


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
