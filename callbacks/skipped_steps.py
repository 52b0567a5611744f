"""Keep what an update could not be computed from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.distributed import rank
from ragen_pl.hooks import announce
from ragen_pl.starpo import StarPO
from ragen_pl.types import TensorBatch

FOLDER = "skipped"


class SkippedSteps(Callback):
    """Save the batch of an optimizer step that was skipped, for a gradient that was not finite.

    Each rank writes its share of the latest one to ``skipped/rank{n}.pt`` in the run folder: nested
    dictionaries of tensors, which ``torch.load`` reads without unpickling anything else.
    """

    def __init__(self) -> None:
        self._counted = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember how many were skipped before."""
        self._counted = cast(StarPO, pl_module).skipped_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the batch when there is one more now; all ranks skip together."""
        module = cast(StarPO, pl_module)
        if module.skipped_steps == self._counted:
            return
        path = Path(trainer.default_root_dir) / FOLDER / f"rank{rank()}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"iteration": module.iteration, "batch": tensors(batch)}, path)
        announce(
            trainer,
            f"a step was skipped in iteration {module.iteration + 1}: a gradient was not finite; "
            f"its batch is {path}",
        )


def tensors(batch: TensorBatch) -> dict[str, Any]:
    """Return a batch as nested plain data, on the CPU."""
    return {field.name: _plain(getattr(batch, field.name)) for field in fields(batch)}


def _plain(value: Any) -> Any:
    if isinstance(value, TensorBatch):
        return tensors(value)
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value
