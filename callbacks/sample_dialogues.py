"""Dialogues of the evaluations, as text in the loggers."""

from __future__ import annotations

import textwrap
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.report.trajectory_record import system_message, trajectory_record
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.training.access import completed_iterations, data_module
from ragen_pl.types import Evaluation, Trajectory

COUNT = 3
"""Dialogues per evaluation set, from its first initial states, the same in every evaluation."""


class SampleDialogues(Callback):
    """A few dialogues of every evaluation, as text in every logger that accepts text.

    Each shows the system message, the observations, the responses and the rewards of one
    trajectory, under ``dialogues/<evaluation set>/<number>``. TensorBoard, with its slider over
    iterations, shows how the answers to one initial state change.
    """

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Log dialogues of an evaluation set."""
        _log_dialogues(trainer, args[0], args[2])

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Log dialogues of an evaluation set."""
        _log_dialogues(trainer, args[0], args[2])


def _log_dialogues(trainer: Trainer, module: LightningModule, batch: Any) -> None:
    if not isinstance(batch, Evaluation) or not trainer.is_global_zero:
        return
    experiments = [getattr(logger, "experiment", None) for logger in trainer.loggers]
    writers = [getattr(each, "add_text", None) for each in experiments]
    if not any(map(callable, writers)):
        return
    data = data_module(trainer)
    env, step = data.eval_sets[batch.eval_set], completed_iterations(trainer, module)
    chat = data.evaluation_dialogue(batch.eval_set)
    for number, group in enumerate(batch.groups[:COUNT], start=1):
        system = system_message(env, group.seed, chat)
        text = render_dialogue(group.trajectories[0], chat, system)
        for add_text in filter(callable, writers):
            add_text(f"dialogues/{batch.eval_set}/{number}", text, step)


def render_dialogue(trajectory: Trajectory, chat: Dialogue, system: str) -> str:
    """Render a trajectory as Markdown: messages as indented blocks, each response with its
    rewards."""
    record = trajectory_record(trajectory, chat, system)
    outcome = "success" if trajectory.success else "no success"
    parts = [
        f"start {trajectory.seed}: {outcome}, return {trajectory.total_reward:g}, "
        f"{trajectory.stop_reason}"
    ]
    turns = iter(record["turns"])
    for message in record["messages"]:
        parts += [f"**{message['role']}**", textwrap.indent(message["content"], "    ")]
        if message["role"] == "assistant":
            rewards = next(turns)["rewards"].items()
            parts.append("reward " + ", ".join(f"{name} {value:g}" for name, value in rewards))
    return "\n\n".join(parts)
