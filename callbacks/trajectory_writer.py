"""Trajectories as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.report.trajectory_record import system_message, trajectory_record
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.training.access import data_module
from ragen_pl.training.callback import RolloutCallback, announce
from ragen_pl.training.run_folder import TRAJECTORIES
from ragen_pl.types import Evaluation, TrajectoryGroup


class TrajectoryWriter(RolloutCallback):
    """Trajectories in ``trajectories/`` in the run folder, one JSON object per line.

    ``predict`` writes every evaluation set; training writes the rollout of every n-th iteration.
    Each line holds messages, token ids, loss mask, log-probs, per-turn rewards and metrics.

    Args:
        every_n_iterations: Iterations between two rollouts that are written; 0 writes none.
    """

    def __init__(self, every_n_iterations: int = 0) -> None:
        super().__init__()
        if every_n_iterations < 0:
            raise ValueError(
                f"every_n_iterations is {every_n_iterations}; it must be 0 (never) or more"
            )
        self.every_n_iterations = every_n_iterations

    def on_rollout_end(
        self, trainer: Trainer, module: LightningModule, groups: list[TrajectoryGroup]
    ) -> None:
        """Write the rollout of an iteration that is due."""
        every = self.every_n_iterations
        if every and (self.iteration + 1) % every == 0:
            name = f"iteration-{self.iteration + 1:05d}.jsonl"
            data = data_module(trainer)
            _write(trainer, name, groups, data.env, data.dialogue)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any, **__: Any
    ) -> None:
        """Write an evaluation set."""
        if isinstance(outputs, Evaluation):
            data, name = data_module(trainer), f"predict-{outputs.eval_set}.jsonl"
            env = data.eval_sets[outputs.eval_set]
            dialogue = data.evaluation_dialogue(outputs.eval_set)
            path = _write(trainer, name, outputs.groups, env, dialogue)
            announce(trainer, f"trajectories on {outputs.eval_set}: {path}")


def _write(
    trainer: Trainer,
    name: str,
    groups: Iterable[TrajectoryGroup],
    env: TextEnv,
    dialogue: Dialogue,
) -> Path:
    """Write the trajectories of all ranks to one file; every rank must call it."""
    path = Path(trainer.default_root_dir) / TRAJECTORIES / name
    everyone = [group for part in gather_objects(list(groups)) for group in part]
    if not trainer.is_global_zero:
        return path
    texts: dict[int, str] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for group in sorted(everyone, key=lambda group: group.group_id):
            if group.seed not in texts:
                texts[group.seed] = system_message(env, group.seed, dialogue)
            for trajectory in group.trajectories:
                record = trajectory_record(trajectory, dialogue, texts[group.seed])
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path
