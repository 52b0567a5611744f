"""Differences between runs: success paired by initial state, and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragen_pl.report.comparison import difference_of
from ragen_pl.report.run_data import RunData
from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.evaluation.success_statistics import PairedDifference
from ragen_pl.training.run_folder import FINAL


@dataclass(frozen=True, slots=True)
class Cell:
    """One run's score in a row of the comparison."""

    success: float
    low: float
    high: float
    difference: PairedDifference | None
    """To the first run, in success; None for the first run itself, where it has no such score, and
    where starts differ."""
    remark: str
    """Why there is no difference; empty otherwise."""

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference shown``, by the 95 % interval."""
        if self.difference is None:
            return self.remark
        if self.difference.low > 0:
            return "better"
        return "worse" if self.difference.high < 0 else "no difference shown"


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one evaluation set at one temperature, over all runs."""

    policy: str
    eval_set: str
    temperature: float | None
    cells: tuple[Cell | None, ...]
    """By run; None where it was not evaluated."""


POLICIES = (FINAL, "warm-started")
"""Policies that are compared between runs."""


def compare_scores(runs: Sequence[RunData]) -> list[Row]:
    """Compare the success of final and warm-started policies, each with the first run."""
    scores = [{(e.policy, e.eval_set, e.temperature): e for e in run.evaluations} for run in runs]
    keys = dict.fromkeys(key for each in scores for key in each if key[0] in POLICIES)
    return [
        Row(*key, _cells([each.get(key) for each in scores]))
        for key in sorted(keys, key=lambda key: POLICIES.index(key[0]))
    ]


def _cells(entries: Sequence[PolicyResult | None]) -> tuple[Cell | None, ...]:
    first, *_ = entries
    return tuple(None if entry is None else _cell(entry, first) for entry in entries)


def _cell(entry: PolicyResult, first: PolicyResult | None) -> Cell:
    result = entry.result
    difference, remark = None, ""
    if first is not None and entry is not first:
        try:
            difference = difference_of(first, entry).paired
        except ValueError:
            remark = "other starts"
    return Cell(result.success, result.low, result.high, difference, remark)


ABSENT = "–"
"""Stands for the value of a key that a run does not have."""


def differing_settings(runs: Sequence[RunData]) -> list[tuple[str, list[Any]]]:
    """List the keys whose values differ between runs, with each run's value; the folder, which
    always does, is left out."""
    flat = [dict(leaves(run.config)) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each if key != "run_dir")
    rows = [(key, [each.get(key, ABSENT) for each in flat]) for key in keys]
    return [(key, values) for key, values in rows if any(v != values[0] for v in values)]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over (dotted key, value) of nested mappings."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif path:
        # YAML gives lists back where constructors hold tuples.
        yield path, list(tree) if isinstance(tree, tuple) else tree
