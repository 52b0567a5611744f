"""Evaluation results of a run: as plain data for a file and as text tables for a reader."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ragen_pl.training.evaluation.results import PolicyResult

MAX_DIFFICULTIES = 20
"""Number of difficulties beyond which success is not split by them, as where every start has a name
of its own."""


@dataclass(frozen=True, slots=True)
class Validation:
    """Success on the evaluation sets in the latest validation during training."""

    iterations: int
    temperature: float
    success: Mapping[str, tuple[float, float, float]]
    """(success, lower end, upper end of its 95 % interval) by evaluation set."""

    def __str__(self) -> str:
        eval_sets = [
            f"{eval_set} {_interval(*values)}" for eval_set, values in self.success.items()
        ]
        when = f"latest validation, after iteration {self.iterations}, at T={self.temperature:g}"
        return f"{when}: {', '.join(eval_sets)}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self) | {"success": {name: list(v) for name, v in self.success.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Validation:
        """Read the output of ``to_dict``."""
        success = {name: (v[0], v[1], v[2]) for name, v in data["success"].items()}
        return cls(data["iterations"], data["temperature"], success)


def format_json(content: Mapping[str, Any]) -> str:
    """Return JSON with one line per value, list entry and table column."""
    lines = []
    for name, value in content.items():
        text = json.dumps(value)
        if isinstance(value, dict) and value:
            text = _block("{", [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()], "}")
        elif isinstance(value, list) and value:
            text = _block("[", [json.dumps(entry) for entry in value], "]")
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _block(opening: str, entries: Sequence[str], closing: str) -> str:
    return opening + "\n  " + ",\n  ".join(entries) + "\n " + closing


def format_results(results: Sequence[PolicyResult], temperature: float) -> str:
    """Return the tables of a run's results as text.

    The first shows success by policy and evaluation set at the given temperature. The others are of
    the first evaluation set: success by temperature; success by difficulty, at each temperature;
    and thought accuracy, at each.
    """
    if not results:
        return "no policy was evaluated"
    headline = [r for r in results if r.temperature in (temperature, None)]
    first = results[0].eval_set
    policies = _unique([r.policy for r in results])
    detailed = sorted(
        (r for r in results if r.eval_set == first and r.temperature is not None),
        key=lambda r: (policies.index(r.policy), r.temperature),
    )
    parts = [
        _success_table(headline, temperature),
        _temperature_table(detailed),
        _difficulty_table([r for r in detailed if _is_detailed(r)]),
        _thought_accuracy_lines(detailed),
        _env_errors_line(results),
    ]
    return "\n\n".join(part for part in parts if part)


def format_scores(results: Sequence[PolicyResult]) -> str:
    """Return the tables of an evaluation: for each set, one with every score, and one with success
    by difficulty.
    """
    if not results:
        return "no policy was evaluated"
    parts: list[str] = []
    for eval_set in _unique([each.eval_set for each in results]):
        own = [each for each in results if each.eval_set == eval_set]
        parts += [_score_table(own), _difficulty_table([r for r in own if _is_detailed(r)])]
    parts.append(_env_errors_line(results))
    return "\n\n".join(part for part in parts if part)


def _is_detailed(result: PolicyResult) -> bool:
    return 0 < len(result.result.by_difficulty) <= MAX_DIFFICULTIES


def _score_table(results: Sequence[PolicyResult]) -> str:
    """Format every score of one evaluation set, with a row per policy and temperature."""
    first = results[0]
    tries = sorted({k for each in results for k in each.result.pass_at if k > 1})
    header = [
        f"{first.eval_set} ({first.fingerprint})" if first.fingerprint else first.eval_set,
        *("success [95 % interval]", *(f"pass@{k}" for k in tries), "return"),
        *("valid format", "actions/optimum", "true thoughts"),
    ]
    rows = [header]
    for each in results:
        scores = each.result
        has_text = each.temperature is not None
        rows.append(
            [
                _policy_at(each),
                _interval(scores.success, scores.low, scores.high),
                *(_percent(scores.pass_at.get(k)) for k in tries),
                f"{scores.mean_return:.2f}",
                _percent(scores.valid_format if has_text else None),
                "–" if scores.action_ratio is None else f"{scores.action_ratio:.2f}",
                _percent(scores.thought_accuracy if has_text else None),
            ]
        )
    return format_table(rows)


def _policy_at(result: PolicyResult) -> str:
    """Name a policy with its temperature."""
    if result.temperature is None:
        return result.policy
    return f"{result.policy}, {_how(result.temperature)}"


def _how(temperature: float) -> str:
    """Name a sampling temperature."""
    return f"T={temperature:g}" if temperature else "greedy"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as text columns, the first aligned left and the others aligned right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _interval(share: float, low: float, high: float) -> str:
    return f"{_percent(share)} [{100 * low:.1f}, {100 * high:.1f}]"


def _unique(values: Sequence[str]) -> list[str]:
    """Return distinct values in order of appearance."""
    return list(dict.fromkeys(values))


def _success_table(results: Sequence[PolicyResult], temperature: float) -> str:
    cells = {
        (r.policy, r.eval_set): _interval(r.result.success, r.result.low, r.result.high)
        for r in results
    }
    eval_sets = _unique([r.eval_set for r in results])
    header = [f"success at T={temperature:g} [95 % interval]", *eval_sets]
    policies = _unique([r.policy for r in results])
    rows = [
        [policy, *(cells.get((policy, eval_set), "–") for eval_set in eval_sets)]
        for policy in policies
    ]
    return format_table([header, *rows])


def _temperature_table(results: Sequence[PolicyResult]) -> str:
    """Format the success of policies that were evaluated at more than one temperature."""
    cells = {(r.policy, r.temperature): _percent(r.result.success) for r in results}
    temperatures = sorted({r.temperature for r in results if r.temperature is not None})
    policies = [
        policy
        for policy in _unique([r.policy for r in results])
        if sum((policy, t) in cells for t in temperatures) > 1
    ]
    if not policies:
        return ""
    header = [f"{results[0].eval_set}: success at", *map(_how, temperatures)]
    rows = [[p, *(cells.get((p, t), "–") for t in temperatures)] for p in policies]
    return format_table([header, *rows])


def _difficulty_table(results: Sequence[PolicyResult]) -> str:
    difficulties = _unique([name for r in results for name in r.result.by_difficulty])
    if not difficulties:
        return ""
    counts = {name: n for r in results for name, (_, n) in r.result.by_difficulty.items()}
    several = len({r.temperature for r in results}) > 1
    header = [
        f"{results[0].eval_set}: success by difficulty",
        *(f"{name} (n={counts[name]})" for name in difficulties),
    ]
    rows = [
        [_policy_at(r) if several else r.policy]
        + [
            _percent(r.result.by_difficulty[name][0]) if name in r.result.by_difficulty else "–"
            for name in difficulties
        ]
        for r in results
    ]
    return format_table([header, *rows])


def _thought_accuracy_lines(results: Sequence[PolicyResult]) -> str:
    """Format the thought accuracy of policies on one evaluation set, a line per temperature."""
    lines = {}
    for temperature in {r.temperature for r in results if r.temperature is not None}:
        accuracies = [
            f"{r.policy} {_percent(r.result.thought_accuracy)}"
            for r in results
            if r.temperature == temperature and r.result.thought_accuracy is not None
        ]
        if accuracies:
            lines[temperature] = ", ".join(accuracies)
    if not lines:
        return ""
    title = f"{results[0].eval_set}: thought accuracy"
    if len({r.temperature for r in results}) == 1:
        return f"{title}: {next(iter(lines.values()))}"
    return "\n".join([title, *(f"  {_how(t)}: {lines[t]}" for t in sorted(lines))])


def _env_errors_line(results: Sequence[PolicyResult]) -> str:
    """List the results that exclude trajectories in which the environment failed."""
    excluded = [
        f"{_policy_at(r)} on {r.eval_set}: {r.result.env_errors} of "
        f"{r.result.count + r.result.env_errors}"
        for r in results
        if r.result.env_errors
    ]
    if not excluded:
        return ""
    return f"excluded because environment or endpoint failed: {', '.join(_unique(excluded))}"
