"""Word the scores of a run's policies: as plain data for a file and as tables for a reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragen_pl.training.evaluation import EvalResult


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Say which policy scored what, where and how it was sampled."""

    policy: str
    """``random``, ``expert``, ``untrained``, ``warm-started`` or ``final``."""
    eval_set: str
    temperature: float | None
    """None for random moves and the expert, which have none."""
    score: EvalResult
    iterations: int | None = None
    """Behind the policy; None where there are none, and in files of earlier versions."""

    def plain(self) -> dict[str, Any]:
        """Return JSON types."""
        difficulties = {name: list(value) for name, value in self.score.by_difficulty.items()}
        facts = asdict(self.score) | {"by_difficulty": difficulties}
        return {
            "policy": self.policy,
            "eval_set": self.eval_set,
            "temperature": self.temperature,
            "iterations": self.iterations,
            **facts,
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> PolicyResult:
        """Read what ``plain`` returned."""
        facts = dict(data)
        place = {name: facts.pop(name) for name in ("policy", "eval_set", "temperature")}
        place["iterations"] = facts.pop("iterations", None)
        difficulties = {
            name: (float(s), int(n)) for name, (s, n) in facts.pop("by_difficulty").items()
        }
        solved, failed = tuple(facts.pop("solved")), tuple(facts.pop("failed"))
        scored = EvalResult(**facts, by_difficulty=difficulties, solved=solved, failed=failed)
        return cls(**place, score=scored)


@dataclass(frozen=True, slots=True)
class Validation:
    """Keep what the training's latest look at the evaluation sets found."""

    iterations: int
    temperature: float
    success: Mapping[str, tuple[float, float, float]]
    """By evaluation set, with the ends of its 95 % interval."""

    def __str__(self) -> str:
        eval_sets = [
            f"{eval_set} {_interval(*values)}" for eval_set, values in self.success.items()
        ]
        when = f"latest validation, after iteration {self.iterations}, at T={self.temperature:g}"
        return f"{when}: {', '.join(eval_sets)}"

    def plain(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self) | {"success": {name: list(v) for name, v in self.success.items()}}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Validation:
        """Read what ``plain`` returned."""
        success = {name: (v[0], v[1], v[2]) for name, v in data["success"].items()}
        return cls(data["iterations"], data["temperature"], success)


def lines_of_json(content: Mapping[str, Any]) -> str:
    """Write JSON with one line per fact, per entry of a list and per column of a table."""
    facts = []
    for name, value in content.items():
        text = json.dumps(value)
        if isinstance(value, dict) and value:
            text = _block("{", [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "}")
        elif isinstance(value, list) and value:
            text = _block("[", [json.dumps(entry) for entry in value], "]")
        facts.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(facts) + "\n}\n"


def _block(opening: str, entries: Sequence[str], closing: str) -> str:
    return opening + "\n  " + ",\n  ".join(entries) + "\n " + closing


def render(scores: Sequence[PolicyResult], temperature: float) -> str:
    """Write the tables: policies by evaluation sets, then temperatures, difficulties and thoughts
    on the first.

    The headline table is of the given temperature.
    """
    if not scores:
        return "no policy was evaluated"
    headline = [s for s in scores if s.temperature in (temperature, None)]
    first = scores[0].eval_set
    detailed = [s for s in scores if s.eval_set == first and s.temperature is not None]
    parts = [
        _by_eval_set(headline, temperature),
        _by_temperature(detailed),
        _by_difficulty([s for s in detailed if s.temperature == temperature]),
        _thoughts(headline),
        _left_out(scores),
    ]
    return "\n\n".join(part for part in parts if part)


def _left_out(scores: Sequence[PolicyResult]) -> str:
    """Tell where scores are of fewer trajectories than were to be played."""
    told = [
        f"{s.policy} on {s.eval_set}: {s.score.left_out} of {s.score.count + s.score.left_out}"
        for s in scores
        if s.score.left_out
    ]
    return f"left out, as the environment failed: {', '.join(dict.fromkeys(told))}" if told else ""


def align(rows: Sequence[Sequence[str]]) -> str:
    """Pad the cells of each column to one width; the first column left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _interval(share: float, low: float, high: float) -> str:
    return f"{_percent(share)} [{100 * low:.1f}, {100 * high:.1f}]"


def _names(values: Sequence[str]) -> list[str]:
    """List different values in order of appearance."""
    return list(dict.fromkeys(values))


def _by_eval_set(scores: Sequence[PolicyResult], temperature: float) -> str:
    cells = {
        (s.policy, s.eval_set): _interval(s.score.success, s.score.low, s.score.high)
        for s in scores
    }
    eval_sets = _names([s.eval_set for s in scores])
    header = [f"success at T={temperature:g} [95 % interval]", *eval_sets]
    policies = _names([s.policy for s in scores])
    rows = [
        [policy, *(cells.get((policy, eval_set), "–") for eval_set in eval_sets)]
        for policy in policies
    ]
    return align([header, *rows])


def _by_temperature(scores: Sequence[PolicyResult]) -> str:
    """Show policies that were sampled at more than one temperature."""
    cells = {(s.policy, s.temperature): _percent(s.score.success) for s in scores}
    temperatures = sorted({s.temperature for s in scores if s.temperature is not None})
    policies = [
        policy
        for policy in _names([s.policy for s in scores])
        if sum((policy, t) in cells for t in temperatures) > 1
    ]
    if not policies:
        return ""
    header = [f"{scores[0].eval_set}: success at", *(f"T={t:g}" for t in temperatures)]
    rows = [[p, *(cells.get((p, t), "–") for t in temperatures)] for p in policies]
    return align([header, *rows])


def _by_difficulty(scores: Sequence[PolicyResult]) -> str:
    difficulties = _names([name for s in scores for name in s.score.by_difficulty])
    if not difficulties:
        return ""
    counts = {name: n for s in scores for name, (_, n) in s.score.by_difficulty.items()}
    header = [
        f"{scores[0].eval_set}: success by difficulty",
        *(f"{name} (n={counts[name]})" for name in difficulties),
    ]
    rows = [
        [s.policy]
        + [
            _percent(s.score.by_difficulty[name][0]) if name in s.score.by_difficulty else "–"
            for name in difficulties
        ]
        for s in scores
    ]
    return align([header, *rows])


def _thoughts(scores: Sequence[PolicyResult]) -> str:
    lines = [
        f"{s.policy} {_percent(s.score.thought_accuracy)}"
        for s in scores
        if s.eval_set == scores[0].eval_set and s.score.thought_accuracy is not None
    ]
    return f"{scores[0].eval_set}: true thoughts: {', '.join(lines)}" if lines else ""
