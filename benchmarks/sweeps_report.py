"""Tables of sweeps beside the papers' figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.collapse_study import Outcome, outcome, peaks, series, smooth
from benchmarks.grid import Cell, Grid
from benchmarks.laboratory_report import spread, table
from benchmarks.paper_numbers import PAPER, SOURCES


@dataclass(frozen=True)
class Trial:
    """A cell of the grid with its sweep, setting and seed."""

    sweep: str
    setting: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Finding:
    """The figures of one run in the tables."""

    sweep: str
    setting: str
    seed: int
    eval_set: float
    """Success of the final policy on the first evaluation set."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    start: float
    """Success of the warm-started policy there."""
    peak: float
    """Highest smoothed success of rollouts."""
    outcome: Outcome
    seconds: float


def find(trial: Trial, results: Mapping[str, Any]) -> Finding:
    """Read a run's ``results.json``."""
    first = {entry["policy"]: entry for entry in reversed(results["evaluations"])}
    success = series(results["history"], "rollout/success")
    final = first["final"]
    return Finding(
        trial.sweep,
        trial.setting,
        trial.seed,
        final["success"],
        final["low"],
        final["high"],
        first["untrained"]["success"],
        peaks(smooth(success))[-1],
        outcome(success),
        results["seconds"],
    )


def write_report(folder: Path, planned: Iterable[Trial]) -> None:
    """Write ``sweeps.json`` and ``sweeps.md`` of the runs that are done."""
    grid = Grid(folder)
    found = []
    for trial in planned:
        results = grid.results(trial.cell) if grid.is_done(trial.cell) else None
        if results is not None:
            found.append(find(trial, results))
    if not found:
        print("no run is done: there is nothing to report")
        return
    text = markdown(found)
    facts = json.dumps({"runs": [asdict(finding) for finding in found]}, indent=1)
    (folder / "sweeps.json").write_text(facts + "\n", encoding="utf-8")
    (folder / "sweeps.md").write_text(text, encoding="utf-8")
    print(text)


def markdown(found: Sequence[Finding]) -> str:
    """Write a table per sweep."""
    parts = [
        "# Sweeps\n\nSuccess of the final policy on the evaluation set in per cent, at "
        "temperature 0.5: "
        "mean [range] over seeds, and the 95 % interval that one run's starts leave, averaged. The "
        "papers' models are hundreds of times larger: compare orders, not levels."
    ]
    for sweep in dict.fromkeys(finding.sweep for finding in found):
        rows = [
            row(sweep, setting, [f for f in found if (f.sweep, f.setting) == (sweep, setting)])
            for setting in dict.fromkeys(f.setting for f in found if f.sweep == sweep)
        ]
        header = ["setting", "seeds", "start", "final", "interval", "peak in training"]
        header += ["collapsed", "seconds", "paper"]
        source = SOURCES.get(sweep, "–")
        parts.append(f"## {sweep}\n\n{table(header, rows)}\n\nPaper: {source}.")
    return "\n\n".join(parts) + "\n"


def row(sweep: str, setting: str, found: Sequence[Finding]) -> list[str]:
    """Summarize the seeds of one setting."""
    low, high = fmean(f.low for f in found), fmean(f.high for f in found)
    return [
        setting,
        str(len(found)),
        f"{100 * fmean(f.start for f in found):.0f}",
        spread([f.eval_set for f in found]),
        f"{100 * low:.0f} to {100 * high:.0f}",
        spread([f.peak for f in found]),
        f"{sum(f.outcome == 'collapsed' for f in found)}/{len(found)}",
        f"{fmean(f.seconds for f in found):.0f}",
        PAPER.get(sweep, {}).get(setting, "–"),
    ]
