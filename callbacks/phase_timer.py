"""Log how long the phases of an iteration take."""

from __future__ import annotations

import time
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.hooks import RolloutCallback
from ragen_pl.starpo import StarPO
from ragen_pl.types import Selection, TrajectoryGroup


class PhaseTimer(RolloutCallback):
    """Log the seconds of an iteration's phases on this rank, averaged over ranks.

    ``collect`` is all of the rollout, ``environment`` its part outside the sampler (environments,
    prompts and parsing), ``annotate`` selecting, packing and scoring, ``update`` the optimizer
    steps. Validation, checkpoints and logging are in none of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mark = self._generating = 0.0
        self._spent: dict[str, float] = {}

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Start the clock."""
        super().on_rollout_start(trainer, module, iteration, num_trajectories)
        self._generating = cast(StarPO, module).generating_seconds
        self._mark = time.monotonic()

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> Selection | None:
        """Note what collecting took."""
        collect = self._lap()
        generate = cast(StarPO, module).generating_seconds - self._generating
        self._spent = {"time/collect": collect, "time/environment": collect - generate}
        return None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note what annotating took."""
        if batch_idx == 0 and self._spent:
            self._spent["time/annotate"] = self._lap()
            pl_module.log_dict(
                self._spent, on_step=False, on_epoch=True, batch_size=1, sync_dist=True
            )
            self._spent = {}
        self._mark = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up what the updates take."""
        pl_module.log(
            "time/update",
            self._lap(),
            on_step=False,
            on_epoch=True,
            reduce_fx="sum",
            batch_size=1,
            sync_dist=True,
        )

    def _lap(self) -> float:
        """Return the seconds since the clock was last read."""
        before, self._mark = self._mark, time.monotonic()
        return self._mark - before
