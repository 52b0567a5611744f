"""Recorded dialogues: lines of JSON in the formats that are known, read with a reason for each that
cannot be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from ragen_pl.types import TRAJECTORY_SCHEMA, StopReason

_SYSTEM, _USER, _ASSISTANT = "system", "user", "assistant"
_ENDS = (StopReason.TERMINATED, StopReason.MAX_ACTIONS, StopReason.TRUNCATED)
"""Reasons why an environment ends an episode; with any other, something would have followed."""


class RefusedLineError(Exception):
    """A line that cannot be taught; its text is the reason, equal for lines of one kind."""


@dataclass(frozen=True, slots=True)
class RecordedTokens:
    """A response as it was sampled."""

    token_ids: tuple[int, ...]
    """At least one."""
    stopped: bool
    """Whether the last one is the stop token."""


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A message to the agent and its response."""

    message: str
    """In a trajectory of this library the observation alone, else the whole message."""
    response: str
    """With the opening tag."""
    is_imitated: bool = True
    is_untrue: bool = False
    """Whether the environment found the thought untrue."""
    tokens: RecordedTokens | None = None
    """None where only the text is known."""
    actions: tuple[str, ...] | None = None
    """What was executed; None where only the text tells."""
    reward: float = 0.0
    """The environment's part."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded episode."""

    turns: tuple[RecordedExchange, ...]
    system: str | None
    """The system message; None without one."""
    env: str | None
    """The environment's name; None if the line does not say."""
    seed: int | None
    """The seed of the initial state; None if the line does not say."""
    start: str
    """What tells initial states apart; lines of one start are compared by ``best_per_start``."""
    state: Mapping[str, Any] | None
    """The environment's initial state; None for dialogues of other programs."""
    difficulty: str
    success: bool | None
    total_reward: float | None
    """The return; None if the line does not say."""
    has_ended: bool
    """Whether the environment ended the episode after the last turn, as far as the line says."""
    eval_set: str | None
    """The evaluation set that was played."""
    source: str
    """Who wrote it, in words."""


def read_lines(paths: Sequence[Path]) -> Iterator[tuple[str, Recording | RefusedLineError]]:
    """Iterate over the lines of files with their places, ``file:number``; empty lines are none."""
    for path in paths:
        with path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    try:
                        yield f"{path}:{number}", parse_line(text)
                    except RefusedLineError as reason:
                        yield f"{path}:{number}", reason


def parse_line(text: bytes) -> Recording:
    """Read one line: a trajectory of this library, or messages as TRL and verifiers write them.

    Raises:
        RefusedLineError: if it is neither.
    """
    try:
        line = json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise RefusedLineError("no UTF-8") from None
    except ValueError:
        raise RefusedLineError("no JSON") from None
    if not isinstance(line, dict):
        raise RefusedLineError("no JSON object")
    try:
        if "schema" in line:
            return _trajectory(line)
        return _conversation(line)
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedLineError(f"fields that are missing or of a wrong type ({error!r})") from error


# --- trajectories of this library -----------------------------------------------------------------


def _trajectory(line: Mapping[str, Any]) -> Recording:
    if line["schema"] != TRAJECTORY_SCHEMA:
        raise RefusedLineError(f"schema {line['schema']!r}; known is {TRAJECTORY_SCHEMA!r}")
    metrics, turns, answers = line["metrics"], line["turns"], _answers(line)
    if metrics["error"]:
        raise RefusedLineError("the environment or the endpoint failed")
    said = [each["content"] for each in line["messages"] if each["role"] == _ASSISTANT]
    if not turns or not any(said) or not answers:
        raise RefusedLineError("no assistant message (baselines say nothing)")
    if len(said) != len(turns):
        raise RefusedLineError("wrong role order")
    recorded = tuple(
        RecordedExchange(
            message=turn["observation"],
            response=response,
            is_imitated=turn["is_valid"],
            is_untrue=turn["thought_correct"] is False,
            tokens=RecordedTokens(ids, turn["stopped"]) if ids else None,
            actions=tuple(turn["actions"]),
            reward=float(turn["rewards"].get("env") or 0.0),
        )
        for turn, response, ids in zip(turns, said, answers, strict=True)
    )
    return Recording(
        turns=recorded,
        system=line["messages"][0]["content"],
        env=line["env"],
        seed=line["seed"],
        start=json.dumps(line["initial_state"], sort_keys=True),
        state=line["initial_state"],
        difficulty=line["difficulty"],
        success=metrics["success"],
        total_reward=metrics["return"],
        has_ended=metrics["stop_reason"] in _ENDS,
        eval_set=line["eval_set"],
        source=f"trajectories of {line['policy']}",
    )


def _answers(line: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the sampled tokens of each turn; a summary's, which precede its turn's, are left
    out. An endpoint's answers are known as text alone: they have none."""
    ids, mask = line["token_ids"], line["loss_mask"]
    if not ids:
        return [()] * len(line["turns"])
    if len(ids) != len(mask):
        raise RefusedLineError("token_ids and loss_mask of different lengths")
    runs, at = [], 0
    for sampled, run in groupby(mask):
        end = at + len(list(run))
        if sampled:
            runs.append(tuple(ids[at:end]))
        at = end
    answers = []
    for turn in line["turns"]:
        count = 1 if turn.get("summary") is None else 2  # records of older versions have none
        if len(runs) < count:
            raise RefusedLineError("fewer sampled responses than turns")
        answers.append(runs[count - 1])
        runs = runs[count:]
    return answers


# --- messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Message:
    role: str
    text: str
    is_imitated: bool


def _conversation(line: Mapping[str, Any]) -> Recording:
    """Read ``messages``, or ``prompt`` and ``completion``, of which the completion is imitated."""
    if line.get("messages") is not None:
        messages = [_message(each, is_imitated=True) for each in line["messages"]]
    elif line.get("prompt") is not None and line.get("completion") is not None:
        if isinstance(line["prompt"], str) or isinstance(line["completion"], str):
            raise RefusedLineError(
                'prompt and completion are texts: write them as messages, {"role", "content"}'
            )
        messages = [_message(each, is_imitated=False) for each in line["prompt"]]
        messages += [_message(each, is_imitated=True) for each in line["completion"]]
    else:
        raise RefusedLineError("neither schema, messages nor prompt and completion")
    system = None
    if messages and messages[0].role == _SYSTEM:
        system = messages.pop(0).text
    if messages and messages[-1].role == _USER:  # what the last answer led to, for nobody to answer
        messages.pop()
    if not any(each.role == _ASSISTANT for each in messages):
        raise RefusedLineError("no assistant message")
    unknown = {each.role for each in messages} - {_USER, _ASSISTANT}
    if unknown:
        raise RefusedLineError(
            f"a message of the role {min(unknown)!r}; known are an optional first {_SYSTEM!r}, "
            f"then {_USER!r} and {_ASSISTANT!r} in turn"
        )
    in_turn = all(one.role != other.role for one, other in pairwise(messages))
    if messages[0].role != _USER or not in_turn:
        raise RefusedLineError("wrong role order")
    pairs = zip(messages[::2], messages[1::2], strict=True)
    reward = _first(line, "return", "reward", "score")
    if reward is not None and not math.isfinite(float(reward)):
        raise RefusedLineError(f"a return of {reward}")
    success, seed = line.get("success"), line.get("seed")
    if success is not None and not isinstance(success, bool):
        raise RefusedLineError("success is neither true nor false")
    return Recording(
        turns=tuple(
            RecordedExchange(user.text, answer.text, answer.is_imitated) for user, answer in pairs
        ),
        system=system,
        env=None if line.get("env") is None else str(line["env"]),
        seed=seed if isinstance(seed, int) else None,
        start=messages[0].text if seed is None else str(seed),
        state=None,
        difficulty=str(line.get("difficulty") or ""),
        success=success,
        total_reward=None if reward is None else float(reward),
        has_ended=False,
        eval_set=None,
        source="messages",
    )


def _message(given: Mapping[str, Any], *, is_imitated: bool) -> _Message:
    role, content = given["role"], given.get("content")
    if given.get("tool_calls"):
        raise RefusedLineError("a call of tools outside of the text")
    if isinstance(content, list):
        if any(part["type"] != "text" for part in content):
            raise RefusedLineError("a message with parts other than text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RefusedLineError("a message without text")
    thought = given.get("reasoning_content")
    if role == _ASSISTANT and thought:
        content = f"<think>{thought}</think>{content.lstrip()}"
    return _Message(str(role), content, is_imitated)


def _first(line: Mapping[str, Any], *keys: str) -> Any:
    return next((line[key] for key in keys if line.get(key) is not None), None)
