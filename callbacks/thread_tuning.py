"""The number of threads, adapted to the load of the machine during a run."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from ragen_pl.runtime.threads import ThreadTuner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.trainer import announce

_MAX_ANNOUNCED = 5
"""Maximum number of announced changes, since there can be many if the machine's load varies."""


class ThreadTuning(RolloutCallback):
    """Repeated trials of the number of threads, between turns and optimizer steps.

    Threads wait for one another after every operation; as soon as another program takes a core, one
    thread can be faster than several. Nothing is tried if the user fixed the number, on
    accelerators, or on a single core.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tuner: ThreadTuner | None = None
        """Set by the application when the number of threads is ``auto``."""
        self._changes = 0

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Tune between two turns of a rollout."""
        self._tune(trainer)

    def on_evaluation_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Tune between two turns of an evaluation."""
        self._tune(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Tune before an optimizer step; log the number of threads once per iteration."""
        if batch_idx == 0:
            self.record({"time/threads": float(torch.get_num_threads())})
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._tune(trainer)

    def _tune(self, trainer: Trainer) -> None:
        times = None if self.tuner is None else self.tuner.look()
        if times is None:
            return
        self._changes += 1
        if self._changes <= _MAX_ANNOUNCED:
            tried = ", ".join(f"{count}: {1000 * s:.1f} ms" for count, s in times.items())
            last = self._changes == _MAX_ANNOUNCED
            hint = "; further changes: metric time/threads" if last else ""
            announce(trainer, f"threads: now {torch.get_num_threads()} (a step took {tried}){hint}")
