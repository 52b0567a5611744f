"""The metadata of a run, saved with its weights in each of its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.training.run_folder import METADATA, RunMetadata


class SavedMetadata(Callback):
    """Callback that adds a run's metadata to its checkpoints, so that ``--ckpt_path`` takes them.

    Args:
        metadata: The metadata, with the number of threads that the run begins with.
    """

    def __init__(self, metadata: RunMetadata) -> None:
        self.metadata = metadata

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the metadata, with the number of threads at this moment."""
        checkpoint[METADATA] = replace(self.metadata, threads=torch.get_num_threads()).plain()
