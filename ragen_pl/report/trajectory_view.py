"""Trajectories as the page shows them: rows of the list, and the details of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_pl.report.boards import Boards
from ragen_pl.report.charts import LEVELS, difficulty_order, level_name
from ragen_pl.report.recorded_trajectories import (
    ROLLOUT,
    Entry,
    RecordedTrajectory,
    RecordedTurn,
    Tokens,
    read_trajectories,
)
from ragen_pl.report.run_data import RunData
from ragen_pl.report.trajectory_choice import choose
from ragen_pl.runtime.visible_text import one_line, visible
from ragen_pl.training.run_folder import FINAL

Json = dict[str, Any]


class TrajectoryViews:
    """The trajectories of all runs of a report.

    ``rows`` and ``details`` have an entry for each; equal system messages are stored once.
    """

    def __init__(self) -> None:
        self.rows: list[Json] = []
        self.details: list[Json] = []
        self.systems: list[str] = []
        self.boards = Boards()
        self.found = 0
        """Trajectories that the runs recorded."""
        self._system_numbers: dict[str, int] = {}

    def add(self, number: int, run: RunData, limit: int, max_bytes: int) -> None:
        """Add a run's trajectories.

        Args:
            number: The run's place in the report.
            run: The run.
            limit: The most trajectories to show.
            max_bytes: About as many bytes of records may be shown; long responses leave room for
                fewer trajectories.
        """
        self.found += len(run.entries)
        levels = _levels_by_iteration(run)
        chosen = choose(run.entries, limit)
        size = sum(entry.size for entry in chosen)
        if size > max_bytes:
            chosen = choose(run.entries, int(limit * max_bytes / size))
        for trajectory in read_trajectories(sorted(chosen, key=_place)):
            entry = trajectory.entry
            env = self.boards.environment(run.config, entry.eval_set, entry.env)
            states = [turn.state for turn in trajectory.turns]
            if states and states[0] is None:
                states[0] = trajectory.initial_state
            pictures = [self.boards.number(env, state) for state in states]
            final = self.boards.number(env, trajectory.final_state)
            self.rows.append(_row(number, trajectory, levels, pictures, final))
            self.details.append(self._detail(trajectory, pictures, final))

    def _detail(
        self, trajectory: RecordedTrajectory, pictures: Sequence[int | None], final: int | None
    ) -> Json:
        system = visible(trajectory.system)
        if system not in self._system_numbers:
            self._system_numbers[system] = len(self.systems)
            self.systems.append(system)
        return {
            "system": self._system_numbers[system],
            "error": visible(trajectory.error),
            "reason": one_line(trajectory.selection_reason, 300),
            "chosen": one_line(trajectory.chosen_as, 100),
            "signs": [one_line(sign, 300) for sign in trajectory.alarm_signs],
            "turns": [
                _turn(turn, picture)
                for turn, picture in zip(trajectory.turns, pictures, strict=True)
            ],
            "final": final,
        }


def _place(entry: Entry) -> tuple[Any, ...]:
    """Sort trajectories from the newest policy to the oldest; actors without one come last."""
    return (
        entry.iteration is None,
        -(entry.iteration or 0),
        entry.policy != FINAL,
        entry.source == ROLLOUT,
        entry.path.name,
        entry.group,
        entry.member,
    )


def _levels_by_iteration(run: RunData) -> dict[int, str]:
    curve = run.curves.get("collapse/level")
    if curve is None:
        return {}
    return {
        step: level_name(value) for step, value in zip(curve.iterations, curve.values, strict=True)
    }


def moment(entry: Entry) -> str:
    """Name when and by whom a trajectory was played."""
    if entry.source == ROLLOUT:
        return "rollout" if entry.iteration is None else f"rollout, iteration {entry.iteration}"
    name = {"training": "validation", "": entry.source}.get(entry.policy, entry.policy)
    at = "" if entry.iteration is None else f", iteration {entry.iteration}"
    return f"{name}{at}"


def _row(
    run: int,
    trajectory: RecordedTrajectory,
    levels: Mapping[int, str],
    pictures: Sequence[int | None],
    final: int | None,
) -> Json:
    entry = trajectory.entry
    level = trajectory.alarm_level or levels.get(entry.iteration or -1)
    stem = entry.path.stem
    tokens = [len(turn.tokens.text) for turn in trajectory.turns if turn.tokens is not None]
    return {
        "id": one_line(f"{run}.{stem}.{entry.group}.{entry.member}", 120).replace(" ", "_"),
        "run": run,
        "source": entry.source,
        "file": one_line(entry.path.name, 120),
        "moment": one_line(moment(entry), 80),
        "iteration": entry.iteration,
        "policy": one_line(entry.policy, 60),
        "set": "training" if entry.eval_set is None else one_line(entry.eval_set, 60),
        "temperature": entry.temperature,
        "env": one_line(entry.env, 60),
        "seed": str(entry.seed),
        "group": f"{run}/{stem}/{entry.group}",
        "start": f"{entry.eval_set}/{entry.env}/{entry.seed}",
        "member": entry.member,
        "difficulty": one_line(entry.difficulty, 40),
        "hardness": min(difficulty_order(entry.difficulty)[0], 1e9),
        "success": entry.success,
        "return": rounded(trajectory.total_reward),
        "turns": len(trajectory.turns),
        "actions": trajectory.num_actions,
        "tokens": sum(tokens) or None,
        "stop": one_line(trajectory.stop_reason, 40),
        "level": level if level in LEVELS else None,
        "weight": trajectory.weight,
        "boards": [*pictures, final],
    }


def _turn(turn: RecordedTurn, picture: int | None) -> Json:
    return {
        "board": picture,
        "observation": visible(turn.observation),
        "thought": visible(turn.thought),
        "response": visible(turn.response),
        "actions": [one_line(action, 200) for action in turn.actions],
        "rewards": {one_line(name, 60): rounded(value) for name, value in turn.rewards.items()},
        "valid": turn.is_valid,
        "fault": None if turn.format_fault is None else turn.format_fault.told,
        "correct": turn.thought_correct,
        "stopped": turn.stopped,
        "entropy": rounded(turn.entropy),
        "cut": turn.begins_sequence,
        "summary": visible(turn.summary),
        "tokens": None if turn.tokens is None else _tokens(turn.tokens),
    }


def _tokens(tokens: Tokens) -> Json:
    columns = {
        "log_prob": tokens.log_probs,
        "entropy": tokens.entropies,
        "advantage": tokens.advantages,
        "gap": tokens.log_prob_gaps,
    }
    numbers = {
        name: [rounded(value) for value in values]
        for name, values in columns.items()
        if values is not None
    }
    return {"text": [visible(text) for text in tokens.text], **numbers}


def rounded(value: float | None) -> float | str | None:
    """Round to four significant digits; a number that is not finite becomes its name, which JSON
    can hold."""
    if value is None:
        return None
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)
