"""What the learning of a run cost, iteration by iteration: processor time and trajectories."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import TrajectoryGroup


class CoreSeconds(RolloutCallback):
    """Core-seconds and trajectories up to the end of each iteration, as ``costs`` in
    ``results.json``.

    Core-seconds are the processor time of all threads of this process, so that another program on
    the machine does not count. The clock stops during evaluations, and does not run before the
    first rollout or imitation. It is for a run in a single process that is never resumed, as the
    cells of a grid are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._spent = 0.0
        self._since: float | None = None
        self._trajectories = 0
        self._core_seconds: list[float] = []
        self._total_trajectories: list[int] = []

    def _resume(self) -> None:
        if self._since is None:
            self._since = time.process_time()

    def _pause(self) -> None:
        self._spent, self._since = self._now(), None

    def _now(self) -> float:
        running = 0.0 if self._since is None else time.process_time() - self._since
        return self._spent + running

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Let the clock run."""
        super().on_rollout_start(trainer, module, iteration, num_trajectories)
        self._resume()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the clock run, also in a warm start and after an evaluation."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self._resume()

    def on_collection_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Count the trajectories."""
        self._trajectories += sum(len(group.trajectories) for group in groups)

    def on_evaluation_start(
        self, trainer: Trainer, module: LightningModule, description: str
    ) -> None:
        """Stop the clock."""
        self._pause()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the clock run."""
        self._resume()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the clock; what follows belongs to the next iteration."""
        super().on_train_epoch_end(trainer, pl_module)
        self._core_seconds.append(round(self._now(), 3))
        self._total_trajectories.append(self._trajectories)

    def results(self) -> dict[str, Any]:
        """Return both as lists over iterations."""
        costs = {"core_seconds": self._core_seconds, "trajectories": self._total_trajectories}
        return {"costs": costs}
