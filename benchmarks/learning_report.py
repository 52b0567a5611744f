"""Tables of what a run's score is owed to: every arm's scores, and how much ``both`` is ahead."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.grid import Cell, Grid
from benchmarks.laboratory_report import table
from benchmarks.learning_curve import CostCurve, cost_curve, draw_costs
from ragen_pl.report.comparison import paired_by_start, read_policy
from ragen_pl.training.evaluation.results import EvalResult
from ragen_pl.training.evaluation.success_statistics import PairedDifference

EVAL_SET = "default"
TEMPERATURES = (0.5, 1.0, 0.0)
"""The first one is that of the tables by difficulty and of the curves."""
_SHOWN = {0.0: "greedy", 0.5: "T=0.5", 1.0: "T=1"}
Scores = Mapping[float, EvalResult]
"""Scores by temperature."""


@dataclass(frozen=True)
class Run:
    """A cell of the grid with its arm, seed and length."""

    arm: str
    title: str
    seed: int
    iterations: int
    cell: Cell


@dataclass(frozen=True)
class Finding:
    """A run's scores before and after learning, and what they cost."""

    arm: str
    title: str
    seed: int
    iterations: int
    core_seconds: float
    trajectories: int
    start_core_seconds: float
    """Of the warm start, without its demonstrations."""
    before: Scores
    after: Scores
    curve: CostCurve


@dataclass(frozen=True)
class Lead:
    """How much more often ``both`` succeeds than an arm, at one temperature."""

    arm: str
    title: str
    temperature: float
    pooled: PairedDifference
    """Over rooms, each with its mean over the seeds of the runs."""
    by_seed: Mapping[int, float]


def write_report(
    folder: Path, planned: Iterable[Run], starts: Mapping[int, Cell], split: str
) -> None:
    """Write ``learning.json``, ``learning.md`` and, where it can be drawn, the figure."""
    found = read(folder, planned, starts)
    if not found:
        print("no run is done: there is nothing to report")
        return
    ahead = leads(found)
    text = markdown(found, ahead, split)
    facts = {
        "split": split,
        "runs": [facts_of(finding) for finding in found],
        "leads": [asdict(lead) for lead in ahead],
    }
    (folder / "learning.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (folder / "learning.md").write_text(text, encoding="utf-8")
    print(text)
    title = f"success on {split} rooms at T={TEMPERATURES[0]:g}; a line is a seed"
    try:
        draw_costs(folder / "learning.png", title, [(f.title, f.curve) for f in found])
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no figure: it needs matplotlib, the extra figures")


def read(folder: Path, planned: Iterable[Run], starts: Mapping[int, Cell]) -> list[Finding]:
    """Read the runs that are done, in their order."""
    grid = Grid(folder)
    found = []
    for run in planned:
        if grid.is_done(run.cell):
            place, start = folder / run.cell.name, folder / starts[run.seed].name
            results = grid.results(run.cell) or {}
            costs = results["costs"]
            start_costs = (grid.results(starts[run.seed]) or {})["costs"]
            before, after = scores(start, "warm-started"), scores(place, "final")
            finding = Finding(
                run.arm,
                run.title,
                run.seed,
                run.iterations,
                costs["core_seconds"][-1],
                costs["trajectories"][-1],
                start_costs["core_seconds"][-1],
                before,
                after,
                cost_curve(place, results, EVAL_SET, before[TEMPERATURES[0]].success),
            )
            found.append(finding)
    return found


def scores(run_dir: Path, policy: str) -> Scores:
    """Return a policy's scores on the evaluation set by temperature."""
    return {
        each.temperature: each.result
        for each in read_policy(run_dir, policy)
        if each.eval_set == EVAL_SET and each.temperature is not None
    }


def leads(found: Sequence[Finding], reference: str = "both") -> list[Lead]:
    """Compare ``both`` with every other arm, on the same rooms and over the seeds of both."""
    by_place = {(finding.arm, finding.seed): finding for finding in found}
    ahead = []
    for arm, title in dict.fromkeys((f.arm, f.title) for f in found if f.arm != reference):
        seeds = [s for a, s in by_place if a == arm and (reference, s) in by_place]
        for temperature in _SHOWN if seeds else ():
            own = [by_place[arm, seed].after[temperature] for seed in seeds]
            best = [by_place[reference, seed].after[temperature] for seed in seeds]
            gains = [
                after.success - before.success for before, after in zip(own, best, strict=True)
            ]
            by_seed = dict(zip(seeds, gains, strict=True))
            difference = paired_by_start(pooled(own), pooled(best))
            ahead.append(Lead(arm, title, temperature, difference, by_seed))
    return ahead


def pooled(results: Sequence[EvalResult]) -> EvalResult:
    """Return one result with the trajectories of several, for a comparison by initial state."""
    return replace(
        results[0],
        solved_seeds=tuple(seed for result in results for seed in result.solved_seeds),
        failed_seeds=tuple(seed for result in results for seed in result.failed_seeds),
    )


def facts_of(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data, without the lists of rooms."""
    content = {**vars(finding), "curve": asdict(finding.curve)}
    return {**content, "before": plain(finding.before), "after": plain(finding.after)}


def plain(each: Scores) -> dict[str, dict[str, Any]]:
    """Return scores as plain data, without the lists of rooms."""
    lists = ("solved_seeds", "failed_seeds")
    return {
        f"{temperature:g}": {key: own for key, own in asdict(result).items() if key not in lists}
        for temperature, result in each.items()
    }


def markdown(found: Sequence[Finding], ahead: Sequence[Lead], split: str) -> str:
    """Write both tables."""
    rooms = found[0].after[TEMPERATURES[0]].count
    parts = [
        "# What the score is owed to\n\n"
        f"Success in per cent on {rooms} {split} rooms: the median over seeds, and their range. By "
        f"difficulty (optimal number of moves) and true thoughts at T={TEMPERATURES[0]:g}. All "
        "arms of a seed begin at the same warm-started policy; their core-seconds and trajectories "
        "are those after the warm start, without evaluations.",
        score_table(found),
    ]
    if ahead:
        parts += [
            "## How much `both` is ahead\n\nDifference in points: the mean over rooms, each with "
            "its mean over seeds, and its 95 % interval, paired by room. The interval is for these "
            "runs: it does not contain how much further seeds would differ, which the differences "
            "by seed show.",
            lead_table(ahead),
        ]
    return "\n\n".join(parts) + "\n"


def score_table(found: Sequence[Finding]) -> str:
    """Tabulate the warm start and every arm."""
    difficulties = list(found[0].after[TEMPERATURES[0]].by_difficulty)
    header = ["arm", "seeds", "iterations", "core-seconds", "trajectories", *_SHOWN.values()]
    starts = list({finding.seed: finding for finding in found}.values())
    seconds = median(finding.start_core_seconds for finding in starts)
    before = ["before: the warm start", f"{len(starts)}", "–", f"{seconds:.0f}", "–"]
    rows = [[*before, *_shown([finding.before for finding in starts], difficulties)]]
    for arm in dict.fromkeys(finding.arm for finding in found):
        part = [finding for finding in found if finding.arm == arm]
        rows.append(
            [
                part[0].title,
                str(len(part)),
                f"{median(finding.iterations for finding in part):.0f}",
                f"{median(finding.core_seconds for finding in part):.0f}",
                f"{median(finding.trajectories for finding in part):,.0f}",
                *_shown([finding.after for finding in part], difficulties),
            ]
        )
    return table([*header, *difficulties, "true thoughts"], rows)


def _shown(each: Sequence[Scores], difficulties: Sequence[str]) -> list[str]:
    """Return the cells of one policy over its seeds."""
    cells = [share([scores[t].success for scores in each]) for t in _SHOWN]
    first = [scores[TEMPERATURES[0]] for scores in each]
    cells += [
        share([result.by_difficulty[name][0] for result in first if name in result.by_difficulty])
        for name in difficulties
    ]
    thoughts = [r.thought_accuracy for r in first if r.thought_accuracy is not None]
    return [*cells, share(thoughts)]


def share(values: Sequence[float]) -> str:
    """Write the median and the range of shares over seeds, in per cent."""
    if not values:
        return "–"
    middle = f"{100 * median(values):.1f}"
    if len(values) == 1:
        return middle
    return f"{middle} [{100 * min(values):.1f}, {100 * max(values):.1f}]"


def lead_table(ahead: Sequence[Lead]) -> str:
    """Tabulate the differences."""
    rows = [
        [
            lead.title,
            _SHOWN[lead.temperature],
            f"{100 * lead.pooled.mean:+.1f} "
            f"[{100 * lead.pooled.low:+.1f}, {100 * lead.pooled.high:+.1f}]",
            ", ".join(f"{100 * gain:+.1f}" for gain in lead.by_seed.values()),
        ]
        for lead in ahead
    ]
    return table(["both against", "at", "difference [95 % interval]", "by seed"], rows)
