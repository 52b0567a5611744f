"""Typed access to the learner and the data module for callbacks, whose hooks get Lightning's base
types."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.run_folder import UNTRAINED
from ragen_pl.training.starpo import StarPO


def learner(module: LightningModule) -> StarPO:
    """Return a hook's module as a ``StarPO``."""
    return cast(StarPO, module)


def data_module(trainer: Trainer) -> RolloutDataModule:
    """Return the trainer's data module as a ``RolloutDataModule``."""
    return cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]


def find_data_module(trainer: Trainer) -> RolloutDataModule | None:
    """Return the trainer's data module; None if the trainer was given plain data loaders."""
    return getattr(trainer, "datamodule", None)


def completed_iterations(trainer: Trainer, module: LightningModule) -> int:
    """Return how many iterations trained the current weights, including the one that is ending."""
    if trainer.state.fn == TrainerFn.FITTING:
        return trainer.current_epoch + 1
    return learner(module).iteration


def policy_name(trainer: Trainer, module: LightningModule) -> str:
    """Name the policy that is evaluated: its checkpoint, the iterations that this process has
    trained it for, or where its weights come from."""
    own = learner(module)
    trained = f"iteration-{own.iteration}" if own.iteration else None
    return str(trainer.ckpt_path or trained or own.trainable.policy.origin or UNTRAINED)
