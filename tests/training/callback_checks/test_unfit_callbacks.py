"""Lightning's callbacks that could not do their work are refused, with what does it instead."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch import callbacks as lightning

from callbacks import Checkpoints
from ragen_pl.errors import ConfigError
from ragen_pl.training.callback_checks.unfit_callbacks import refuse_unfit_callbacks


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
        lightning.EarlyStopping("rollout/success"),
        lightning.LearningRateMonitor(),
        lightning.DeviceStatsMonitor(),
        lightning.Timer(),
        lightning.ModelSummary(),
        lightning.LambdaCallback(),
    ]
    refuse_unfit_callbacks(accepted)
