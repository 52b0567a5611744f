"""A callback that notes what a run plays, and can end it in the middle."""

from __future__ import annotations

from typing import Any, cast

from lightning.pytorch import Trainer

from ragen_pl.training.callback import RolloutCallback
from ragen_pl.types import TrajectoryGroup


class Watch(RolloutCallback):
    """Note what each iteration played, the success rates when it had been, and what was logged.

    Args:
        dies_at: Iteration whose first collection is the last thing that happens.
    """

    def __init__(self, dies_at: int | None) -> None:
        super().__init__()
        self.dies_at = dies_at
        self.played: dict[int, list[TrajectoryGroup]] = {}
        self.running: dict[int, dict[str, float]] = {}
        self.logged: dict[str, float] = {}

    def on_collection_end(
        self, trainer: Trainer, module: Any, groups: list[TrajectoryGroup]
    ) -> None:
        if self.iteration == self.dies_at:
            raise SystemExit(9)
        self.played.setdefault(self.iteration, []).extend(groups)

    def on_rollout_end(self, trainer: Trainer, module: Any, groups: list[TrajectoryGroup]) -> None:
        self.running[self.iteration] = cast(Any, trainer).datamodule.starts.running_success

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.logged |= {name: float(value) for name, value in trainer.callback_metrics.items()}
