"""Seconds of the phases of an iteration."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import world_size
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback


class PhaseTimer(RolloutCallback):
    """Seconds of an iteration's phases, averaged over ranks.

    ``time/rollout`` is the whole rollout, ``time/env`` its part outside the sampler (environments,
    prompts and parsing), ``time/score_pass`` everything between the rollout and the first update
    (callbacks, packing, old log-probs and values), ``time/update`` the optimizer steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start = self._rollout_end = self._generated = 0.0
        self._seconds: dict[str, float] = {}

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Start the clock."""
        self._generated = learner(module).sampler.seconds
        self._start = self._rollout_end = time.monotonic()
        # Ranks without a trajectory must log the same metrics.
        self._seconds = {"time/rollout": 0.0, "time/env": 0.0}

    def on_rollout_progress(
        self, trainer: Trainer, module: LightningModule, finished: int, total: int
    ) -> None:
        """Read the clock after every turn; the last one ends the rollout."""
        self._rollout_end = time.monotonic()
        rollout = self._rollout_end - self._start
        generation = learner(module).sampler.seconds - self._generated
        self._seconds = {"time/rollout": rollout, "time/env": rollout - generation}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Discard the first rollout's times: evaluations came between it and the first update."""
        self._seconds = {}

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log the rollout's seconds before its first update."""
        self._start = time.monotonic()
        if batch_idx == 0 and self._seconds:
            self._seconds["time/score_pass"] = self._start - self._rollout_end
            pl_module.log_dict(
                self._seconds, on_step=False, on_epoch=True, batch_size=1, sync_dist=True
            )
            self._seconds = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add up the seconds of the updates."""
        share = (time.monotonic() - self._start) / world_size()  # the reduction sums over ranks
        pl_module.log(
            "time/update",
            share,
            on_step=False,
            on_epoch=True,
            reduce_fx="sum",
            batch_size=1,
            sync_dist=True,
        )
