"""Lightning's callbacks that could not do their work are refused, with what does it instead."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch import callbacks as lightning

from callbacks import Checkpoints
from ragen_pl.errors import ConfigError
from ragen_pl.training.callback_checks.unfit_callbacks import refuse_unfit_callbacks
from ragen_pl.training.trainer import all_callbacks


def trainer(**more: Any) -> Trainer:
    return Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **more)


class Mine(lightning.EMAWeightAveraging):
    """A user's own subclass."""


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (lightning.StochasticWeightAveraging(1e-3), "averages weights"),
        (Mine(), "Mine averages weights"),
        (lightning.GradientAccumulationScheduler({0: 4}), "tokens_per_micro_batch"),
        (lightning.BatchSizeFinder(), "tokens_per_micro_batch"),
        (lightning.LearningRateFinder(), "model.optimization.lr"),
        (lightning.ModelPruning("l1_unstructured"), "prunes weights"),
        (lightning.BackboneFinetuning(), "model.lora"),
        (lightning.SpikeDetection(), "gradient is not finite"),
        (lightning.OnExceptionCheckpoint("."), "checkpoints.every_n_iterations"),
        (lightning.ModelCheckpoint(save_on_train_epoch_end=False), "save_on_train_epoch_end"),
        (lightning.ModelCheckpoint(every_n_train_steps=1), "every_n_train_steps"),
        (
            lightning.ModelCheckpoint(
                train_time_interval=timedelta(hours=1), save_on_train_epoch_end=True
            ),
            "train_time_interval",
        ),
        (
            lightning.ModelCheckpoint(save_on_exception=True, save_on_train_epoch_end=True),
            "save_on_exception",
        ),
        (lightning.EarlyStopping("rollout/success"), "check_on_train_epoch_end to true"),
        (
            lightning.EarlyStopping("rollout/success", check_on_train_epoch_end=True),
            "its strict to false",
        ),
    ],
)
def test_a_callback_that_could_not_work_is_refused(callback: lightning.Callback, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        refuse_unfit_callbacks([callback])


def test_callbacks_that_work_are_accepted() -> None:
    accepted = [
        Checkpoints(),
        lightning.ModelCheckpoint(save_on_train_epoch_end=True, every_n_epochs=10),
        lightning.EarlyStopping("val/default/success", mode="max"),
        lightning.EarlyStopping("rollout/success", strict=False, check_on_train_epoch_end=True),
        lightning.LearningRateMonitor(),
        lightning.DeviceStatsMonitor(),
        lightning.Timer(),
        lightning.ModelSummary(),
        lightning.LambdaCallback(),
    ]
    refuse_unfit_callbacks(accepted)


def test_a_checkpoint_is_saved_at_the_end_of_an_iteration() -> None:
    """Of itself it would be at the validation before, where Lightning validates seldom."""
    callback = lightning.ModelCheckpoint()
    seldom = trainer(check_val_every_n_epoch=25)
    assert not callback._should_save_on_train_epoch_end(seldom)
    refuse_unfit_callbacks([callback])
    assert callback._should_save_on_train_epoch_end(seldom)


def test_time_that_is_over_ends_the_run_after_the_iteration() -> None:
    """A run that stopped between two updates would count the iteration as done without the rest of
    them."""
    timed = trainer(max_time=timedelta(seconds=0))
    timers = [c for c in all_callbacks(timed) if isinstance(c, lightning.Timer)]
    refuse_unfit_callbacks(timers)
    for timer in timers:
        timer.on_train_batch_end(timed)
    assert not timed.should_stop
    for timer in timers:
        timer.on_train_epoch_end(timed)
    assert timed.should_stop
