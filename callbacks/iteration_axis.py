"""The x-axis of the loggers."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.training.access import completed_iterations


class IterationAxis(Callback):
    """The number of iterations as the x-axis of every logger, in training and in evaluation.

    Lightning's own x-axis counts optimizer steps, whose number per iteration depends on the
    configuration and is 0 without an update. A metric with the name ``step`` takes its place. A
    separate evaluation is logged at the iteration of its checkpoint.
    """

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the x-value of the training metrics."""
        _log_step(trainer, pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the x-value of the validation metrics."""
        _log_step(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the x-value of the test metrics."""
        _log_step(trainer, pl_module)


def _log_step(trainer: Trainer, module: LightningModule) -> None:
    # Every rank has the same value; syncing only tells Lightning so.
    step = float(completed_iterations(trainer, module))
    module.log("step", step, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)
