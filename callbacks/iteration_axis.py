"""The x-axis of the loggers."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.training.access import learner


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


def completed_iterations(trainer: Trainer, module: LightningModule) -> int:
    """Return how many iterations trained the current weights, including the one that is ending."""
    if trainer.state.fn == TrainerFn.FITTING:
        return trainer.current_epoch + 1
    return learner(module).iteration
