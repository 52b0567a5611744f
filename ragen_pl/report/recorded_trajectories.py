"""Recorded trajectories: an index of the files of a run, and one trajectory as a frozen type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ragen_pl.types import FormatFault

ROLLOUT, EVALUATION, PREDICT = "rollout", "evaluation", "predict"
"""Sources of a record."""
Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens of a turn. The sequences have equal lengths, or are None where unknown; a
    number that was not finite is None."""

    text: tuple[str, ...]
    """Together the response; empty for a stop token, and for all but the last token of a split
    character."""
    log_probs: Numbers | None
    entropies: Numbers | None
    advantages: Numbers | None
    log_prob_gaps: Numbers | None


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn of a recorded trajectory."""

    observation: str
    response: str
    """The assistant's message, with a forced opening tag."""
    thought: str
    actions: tuple[str, ...]
    """The executed actions."""
    rewards: Mapping[str, float]
    is_valid: bool | None
    format_fault: FormatFault | None
    thought_correct: bool | None
    stopped: bool | None
    entropy: float | None
    state: Mapping[str, Any] | None
    """The environment's state before the turn; None if it was not recorded."""
    tokens: Tokens | None
    begins_sequence: bool
    """Whether the memory cut the context before the turn."""
    summary: str
    """What the agent wrote to itself before the turn; empty without a summary."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Place and summary of one recorded trajectory, enough to choose and list it."""

    path: Path
    offset: int
    """Byte at which its line begins."""
    size: int
    """Bytes of its line."""
    source: str
    iteration: int | None
    policy: str
    eval_set: str | None
    temperature: float | None
    env: str
    seed: int
    group: int
    member: int
    difficulty: str
    success: bool


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """One trajectory as it was recorded, with what older records lack left empty."""

    entry: Entry
    total_reward: float
    num_actions: int
    stop_reason: str
    error: str
    """What the environment raised; empty if it did not."""
    system: str
    turns: tuple[RecordedTurn, ...]
    weight: float | None
    """The filter's weight of the policy's loss; None if no filter judged it."""
    selection_reason: str
    chosen_as: str
    """What its group stands for among those of its rollout, such as ``best return``."""
    alarm_level: str | None
    """``green``, ``amber`` or ``red``; None if it is unknown."""
    alarm_signs: tuple[str, ...]
    initial_state: Mapping[str, Any] | None
    final_state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The readable trajectories of one file."""

    entries: tuple[Entry, ...]
    num_unreadable: int
    """Lines that hold no trajectory, such as the half-written last line of a killed run."""


class TrajectoryFolder:
    """The trajectory files of a run, each read once for its index as long as it does not change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[Path, tuple[tuple[int, int], FileIndex]] = {}

    def index(self) -> dict[str, FileIndex]:
        """Index every file, by name."""
        found: dict[str, FileIndex] = {}
        for path in sorted(self.path.glob("*.jsonl")):
            try:
                found[path.name] = self._index_file(path)
            except OSError:  # removed since the folder was listed
                continue
        return found

    def _index_file(self, path: Path) -> FileIndex:
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        if path not in self._known or self._known[path][0] != stamp:
            self._known[path] = stamp, index_file(path)
        return self._known[path][1]


def index_file(path: Path) -> FileIndex:
    """Read the entries of a file of JSON lines."""
    entries: list[Entry] = []
    num_unreadable = offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                try:
                    entries.append(_entry(_read(line), path, offset, len(line)))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    num_unreadable += 1
            offset += len(line)
    return FileIndex(tuple(entries), num_unreadable)


def read_trajectories(entries: Sequence[Entry]) -> Iterator[RecordedTrajectory]:
    """Read the trajectories of entries, file by file; those that no longer stand there are left
    out."""
    by_path: dict[Path, list[Entry]] = {}
    for entry in entries:
        by_path.setdefault(entry.path, []).append(entry)
    for path, wanted in by_path.items():
        try:
            with path.open("rb") as file:
                for entry in wanted:
                    file.seek(entry.offset)
                    try:
                        yield trajectory(_read(file.readline()), entry)
                    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                        continue
        except OSError:
            continue


def _read(line: bytes) -> Any:
    """Read a line of JSON, which has neither NaN nor infinity."""
    return json.loads(line, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _entry(data: Mapping[str, Any], path: Path, offset: int, size: int) -> Entry:
    metrics = data["metrics"]
    stem = path.stem
    source = data.get("source") or (PREDICT if stem.startswith("predict-") else ROLLOUT)
    eval_set = data.get("eval_set")
    if eval_set is None and source == PREDICT:
        eval_set = stem.removeprefix("predict-")
    iteration = data.get("iteration")
    return Entry(
        path=path,
        offset=offset,
        size=size,
        source=str(source),
        iteration=None if iteration is None else int(iteration),
        policy=str(data.get("policy") or ("training" if source == ROLLOUT else "")),
        eval_set=None if eval_set is None else str(eval_set),
        temperature=_number(data.get("temperature")),
        env=str(data.get("env", "")),
        seed=int(data["seed"]),
        group=int(data.get("group", 0)),
        member=int(data.get("member", 0)),
        difficulty=str(data.get("difficulty") or ""),
        success=bool(metrics["success"]),
    )


def trajectory(data: Mapping[str, Any], entry: Entry) -> RecordedTrajectory:
    """Return the trajectory that a line holds.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: when it holds another structure.
    """
    system, dialogue = _dialogue(data["messages"])
    turns = tuple(
        _turn(turn, *(dialogue[number] if number < len(dialogue) else ("", "")))
        for number, turn in enumerate(data["turns"])
    )
    metrics, selection, alarm = data["metrics"], data.get("selection"), data.get("alarm")
    return RecordedTrajectory(
        entry=entry,
        total_reward=float(metrics["return"]),
        num_actions=int(metrics.get("num_actions", sum(len(turn.actions) for turn in turns))),
        stop_reason=str(metrics.get("stop_reason") or ""),
        error=str(metrics.get("error") or ""),
        system=system,
        turns=turns,
        weight=None if selection is None else _number(selection.get("weight")),
        selection_reason="" if selection is None else str(selection.get("reason") or ""),
        chosen_as="" if selection is None else str(selection.get("chosen_as") or ""),
        alarm_level=None if alarm is None else str(alarm.get("level")),
        alarm_signs=() if alarm is None else tuple(map(str, alarm.get("signs") or ())),
        initial_state=_mapping(data.get("initial_state")),
        final_state=_mapping(data.get("final_state")),
    )


def _turn(data: Mapping[str, Any], observation: str, response: str) -> RecordedTurn:
    tokens = data.get("tokens")
    return RecordedTurn(
        observation=str(data.get("observation") or observation),
        response=response,
        thought=str(data.get("thought") or ""),
        actions=tuple(map(str, data.get("actions") or ())),
        rewards={str(name): float(value) for name, value in (data.get("rewards") or {}).items()},
        is_valid=data.get("is_valid"),
        format_fault=_fault(data.get("format_fault")),
        thought_correct=data.get("thought_correct"),
        stopped=data.get("stopped"),
        entropy=_number(data.get("entropy")),
        state=_mapping(data.get("state")),
        tokens=None if not tokens else _tokens(tokens),
        begins_sequence=bool(data.get("begins_sequence")),
        summary=str(data.get("summary") or ""),
    )


def _fault(name: Any) -> FormatFault | None:
    """Return a recorded fault; None without one, and for one that this version does not know."""
    return FormatFault(name) if name in list(FormatFault) else None


def _tokens(data: Mapping[str, Any]) -> Tokens | None:
    """Read the sampled tokens; None where there are none, as of a model behind an endpoint."""
    text = tuple(map(str, data["text"]))
    if not text:
        return None

    def numbers(name: str) -> Numbers | None:
        values = data.get(name)
        if values is None or len(values) != len(text):
            return None
        return tuple(map(_number, values))

    return Tokens(
        text,
        numbers("log_probs"),
        numbers("entropies"),
        numbers("advantages"),
        numbers("log_prob_gaps"),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) and value else None


def _dialogue(messages: Sequence[Mapping[str, Any]]) -> tuple[str, list[tuple[str, str]]]:
    """Return the system message, and every observation with the answer to it; an actor without a
    model gives none."""
    system, pairs = "", list[tuple[str, str]]()
    for message in messages:
        role, content = str(message.get("role", "")), str(message.get("content") or "")
        if role == "system":
            system = content
        elif role == "user":
            pairs.append((content, ""))
        elif pairs:
            pairs[-1] = pairs[-1][0], content
    return system, pairs
