"""Typed access to the parts of a run, for callbacks: Lightning's hooks know their base types."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO


def learner(module: LightningModule) -> StarPO:
    """Return the module of a hook as the learner it is."""
    return cast(StarPO, module)


def data_module(trainer: Trainer) -> RolloutDataModule:
    """Return the data module that the trainer runs with."""
    return cast(RolloutDataModule, trainer.datamodule)  # type: ignore[attr-defined]
