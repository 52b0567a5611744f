"""Dialogues of the evaluations, as text and pictures in the loggers."""

from __future__ import annotations

import textwrap
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import EnvError, calling, warn
from ragen_pl.envs.picture import Picture, filmstrip
from ragen_pl.report.trajectory_record import (
    TRAINING,
    Occasion,
    trajectory_record,
)
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.training.access import completed_iterations, data_module, learner
from ragen_pl.types import Evaluation, Trajectory

COUNT = 3
"""Dialogues per evaluation set, from its first initial states, the same in every evaluation."""


class SampleDialogues(Callback):
    """A few dialogues of every evaluation, as text and pictures in every logger that accepts them.

    Each dialogue shows the system message, the observations, the responses and the rewards of one
    trajectory, under ``dialogues/<evaluation set>/<number>``. The states of the first one are a
    filmstrip under ``boards/<evaluation set>`` if the environment draws them: those before every
    turn, then the final one. TensorBoard, with its slider over iterations, shows how the answers to
    one initial state change.
    """

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Log dialogues of an evaluation set."""
        _log_dialogues(trainer, args[0], args[2])

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Log dialogues of an evaluation set."""
        _log_dialogues(trainer, args[0], args[2])


def _log_dialogues(trainer: Trainer, module: LightningModule, batch: Any) -> None:
    if not isinstance(batch, Evaluation) or not batch.groups or not trainer.is_global_zero:
        return
    experiments: list[Any] = [getattr(each, "experiment", None) for each in trainer.loggers]
    writers = [each for each in experiments if callable(getattr(each, "add_text", None))]
    painters = [each for each in experiments if callable(getattr(each, "add_image", None))]
    data, step = data_module(trainer), completed_iterations(trainer, module)
    chat = data.dialogues.evaluation_dialogue(learner(module), batch.eval_set)
    for number, group in enumerate(batch.groups[:COUNT] if writers else (), start=1):
        text = render_dialogue(group.trajectories[0], chat)
        for writer in writers:
            writer.add_text(f"dialogues/{batch.eval_set}/{number}", text, step)
    env, played = data.eval_sets[batch.eval_set], batch.groups[0].trajectories[0]
    strip = draw_states(env, played) if painters else None
    for painter in painters if strip is not None else ():
        painter.add_image(f"boards/{batch.eval_set}", strip, step, dataformats="HWC")


def draw_states(env: TextEnv, trajectory: Trajectory) -> Picture | None:
    """Draw the known states before every turn and the final one, as a filmstrip.

    Returns:
        None if the environment has no pictures or fails to draw.
    """
    states = [turn.state for turn in trajectory.turns] + [trajectory.final_state]
    try:
        with calling("draw"):
            drawings = [env.draw(state) for state in states if state]
            shown = [drawing for drawing in drawings if drawing is not None]
            return filmstrip(shown) if shown else None
    except EnvError as error:
        warn((type(env), error.kind), f"environment {env.name}: {error}; no picture is logged")
        return None


def render_dialogue(trajectory: Trajectory, chat: Dialogue) -> str:
    """Render a trajectory as Markdown: messages as indented blocks, each response with its
    rewards."""
    record = trajectory_record(trajectory, chat, Occasion("evaluation", None, TRAINING))
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
