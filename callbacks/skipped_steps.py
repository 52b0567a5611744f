"""The batch of a skipped optimizer step."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.distributed.checkpoint_io import WRITE_ERRORS, describe_write_error
from ragen_pl.distributed.collectives import rank
from ragen_pl.runtime.durable_files import draft_of, put_in_place, remove
from ragen_pl.runtime.faults import FaultKind, record_shared_fault
from ragen_pl.training.access import learner
from ragen_pl.training.trainer import announce, run_dir_of

FOLDER = "skipped"


class SkippedSteps(Callback):
    """The batch of an optimizer step that was skipped for a non-finite gradient, as a file.

    Each rank writes its share of the latest such batch to ``skipped/rank{n}.pt`` in the run folder:
    nested dictionaries of tensors, which ``torch.load`` reads without unpickling anything else.
    """

    def __init__(self) -> None:
        self._skipped_before = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Record the number of steps skipped so far."""
        self._skipped_before = learner(pl_module).skipped_steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the batch if its step was skipped; all ranks skip the same steps."""
        module = learner(pl_module)
        if module.skipped_steps == self._skipped_before:
            return
        path = run_dir_of(trainer) / FOLDER / f"rank{rank()}.pt"
        content = {"iteration": module.iteration, "batch": asdict(batch.to("cpu"))}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(content, draft_of(path))
            put_in_place(draft_of(path), path)
            where = f"is saved in {path}"
        except WRITE_ERRORS as error:
            remove(draft_of(path))  # else a full disk would stay full
            where = f"could not be saved ({describe_write_error(error)})"
        text = (
            f"skipped the optimizer step of iteration {module.iteration + 1}: a gradient was not "
            f"finite; the batch {where}"
        )
        record_shared_fault(FaultKind.UPDATE, text, batch=batch_idx)
        announce(trainer, text)
