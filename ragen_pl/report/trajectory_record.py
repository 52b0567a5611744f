"""Trajectories as plain data: one JSON object with messages, tokens, rewards and metrics.

``docs/trajectories.md`` describes the fields, ``trajectory.schema.json`` beside this file checks
them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ragen_pl.rollout.chat import Chat, Dialogue
from ragen_pl.rollout.token_texts import token_texts
from ragen_pl.types import TRAJECTORY_SCHEMA, Trajectory, Turn

Source = Literal["rollout", "evaluation", "predict"]
TRAINING = "training"
"""Name of the policy that is being trained."""


@dataclass(frozen=True, slots=True)
class IterationAlarm:
    """The Echo Trap alarm of an iteration."""

    level: str
    """``green``, ``amber`` or ``red``."""
    signs: tuple[str, ...]
    """What was found, in words; a single sign may leave the level green."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """When, by whom and for what trajectories were played."""

    source: Source
    iteration: int | None
    """As in ``results.json``: a rollout's own iteration, else the completed ones; None for actors
    without a model."""
    policy: str
    eval_set: str | None = None
    temperature: float | None = None
    alarm: IterationAlarm | None = None
    """Of that iteration's rollout; None where no rollout was assessed."""


@dataclass(frozen=True, slots=True)
class GroupSelection:
    """What the filters decided about a group, and why the group is recorded."""

    weights: tuple[float, ...]
    """Each member's weight in the policy loss."""
    reason: str
    chosen_as: str
    """What the group stands for among those of its rollout, such as ``best return``."""


@dataclass(frozen=True, slots=True)
class TokenEstimates:
    """The learner's estimates of a trajectory's sampled tokens, turn after turn."""

    advantages: tuple[float, ...]
    """As the policy loss takes them, before the trajectory's weight."""
    log_prob_gaps: tuple[float, ...] | None
    """Recomputed minus sampled log-prob; None if the trainer did not compute them."""


def trajectory_record(
    trajectory: Trajectory,
    chat: Dialogue,
    occasion: Occasion,
    selection: GroupSelection | None = None,
    estimates: TokenEstimates | None = None,
) -> dict[str, Any]:
    """Return a trajectory in JSON types; ``token_ids``, ``loss_mask`` and ``log_probs`` have equal
    lengths, which ``sequence_lengths`` divides into training sequences.

    Args:
        trajectory: The episode.
        chat: The chat protocol; its forced opening tag is part of the assistant messages.
        occasion: When and by whom it was played.
        selection: The decision about its group; None outside rollouts.
        estimates: The learner's estimates; None if the policy is not trained on it.
    """
    messages = [{"role": "system", "content": trajectory.system}]
    log_probs: list[float] = []
    turns, at, alarm = [], 0, occasion.alarm
    for turn in trajectory.turns:
        for answer in turn.answers:
            log_probs += [0.0] * len(answer.prompt_ids)
            log_probs += answer.completion.log_probs
        if turn.summary is not None:
            at += len(turn.summary.completion.token_ids)
        messages.append({"role": "user", "content": turn.message or turn.observation})
        # A baseline, which has no prompts, says nothing.
        if trajectory.system or turn.completion.token_ids or turn.response:
            messages.append({"role": "assistant", "content": chat.opening_tag + turn.response})
        end = at + len(turn.completion.token_ids)
        turns.append(_turn_record(turn, chat, _slice(estimates, at, end)))
        at = end
    return {
        "schema": TRAJECTORY_SCHEMA,
        "source": occasion.source,
        "iteration": occasion.iteration,
        "policy": occasion.policy,
        "eval_set": occasion.eval_set,
        "temperature": occasion.temperature,
        "env": trajectory.env_name,
        "seed": trajectory.seed,
        "group": trajectory.group_id,
        "member": trajectory.member,
        "difficulty": trajectory.difficulty,
        "messages": messages,
        "token_ids": list(trajectory.token_ids),
        "loss_mask": [int(sampled) for sampled in trajectory.loss_mask],
        "log_probs": _numbers(log_probs),
        "sequence_lengths": [len(sequence.token_ids) for sequence in trajectory.sequences],
        "turns": turns,
        "selection": None
        if selection is None
        else {
            "weight": selection.weights[trajectory.member],
            "reason": selection.reason,
            "chosen_as": selection.chosen_as,
        },
        "alarm": None if alarm is None else {"level": alarm.level, "signs": list(alarm.signs)},
        "metrics": {
            "success": trajectory.success,
            "return": _number(trajectory.total_reward),
            "num_turns": len(trajectory.turns),
            "num_actions": sum(len(turn.actions) for turn in trajectory.turns),
            "stop_reason": str(trajectory.stop_reason),
            "error": trajectory.error,
        },
        "initial_state": _finite(trajectory.initial_state),
        "final_state": _finite(trajectory.final_state),
    }


def _slice(estimates: TokenEstimates | None, start: int, end: int) -> TokenEstimates | None:
    if estimates is None:
        return None
    gaps = estimates.log_prob_gaps
    return TokenEstimates(estimates.advantages[start:end], gaps and gaps[start:end])


def _turn_record(turn: Turn, chat: Dialogue, estimates: TokenEstimates | None) -> dict[str, Any]:
    completion = turn.completion
    entropies = completion.entropy_estimates
    gaps = None if estimates is None else estimates.log_prob_gaps
    return {
        "observation": turn.observation,
        "state": None if turn.state is None else _finite(turn.state),
        "thought": turn.thought,
        "actions": list(turn.actions),
        "rewards": dict(turn.rewards),
        "is_valid": turn.is_valid,
        "format_fault": turn.format_fault,
        "thought_correct": turn.thought_correct,
        "stopped": completion.stopped,
        "begins_sequence": turn.begins_sequence,
        "summary": None if turn.summary is None else turn.summary.text,
        "entropy": _number(sum(entropies) / max(1, len(entropies))),
        "tokens": {
            "text": token_texts(completion, turn.response, chat) if isinstance(chat, Chat) else [],
            "log_probs": _numbers(completion.log_probs),
            "entropies": _numbers(entropies),
            "advantages": None if estimates is None else _numbers(estimates.advantages),
            "log_prob_gaps": None if gaps is None else _numbers(gaps),
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Round to what a 32-bit number holds of a log-prob; None for what is not finite."""
    return [round(value, 5) if math.isfinite(value) else None for value in values]


def _finite(state: Any) -> Any:
    """Return plain data with None in place of numbers that JSON cannot hold."""
    if isinstance(state, Mapping):
        return {key: _finite(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_finite(value) for value in state]
    return None if isinstance(state, float) and not math.isfinite(state) else state


def record_line(record: Mapping[str, Any]) -> str:
    """Return a record as one line of ASCII, so that no character in it can break a reader."""
    return json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n"
