"""Tables of a laboratory's outcomes, alarms and costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks import collapse_study
from benchmarks.collapse_study import AlarmGrade, RunSummary, breaking_rate, grade
from benchmarks.grid import Cell, Grid

NAMES = {
    "ppo": "StarPO, PPO",
    "ppo-s-updates": "StarPO-S, PPO, equal updates",
    "ppo-s-iterations": "StarPO-S, PPO, equal iterations",
    "grpo": "StarPO, GRPO",
    "grpo-s-updates": "StarPO-S, GRPO, equal updates",
    "grpo-s-iterations": "StarPO-S, GRPO, equal iterations",
    "ppo-filter": "StarPO, PPO, with the filter",
    "ppo-clip-higher": "StarPO, PPO, with clip-higher",
    "ppo-no-kl": "StarPO, PPO, without KL",
    "ppo-s-hindsight": "StarPO-S, PPO, with hindsight imitation",
    "grpo-s-hindsight": "StarPO-S, GRPO, with hindsight imitation",
    "field-grpo": "GRPO",
    "sampo": "SAMPO",
    "sapo": "SAPO",
    "cispo": "CISPO",
    "epo": "EPO",
    "clip-cov": "Clip-Cov",
    "kl-cov": "KL-Cov",
    "mismatch": "GRPO, a wrong sampler",
    "tis": "GRPO, a wrong sampler, with TIS",
}
COMPARISONS = {
    "Equal updates": ("ppo", "ppo-s-updates", "grpo", "grpo-s-updates"),
    "Equal iterations": ("ppo", "ppo-s-iterations", "grpo", "grpo-s-iterations"),
    "StarPO-S taken apart": ("ppo", "ppo-filter", "ppo-clip-higher", "ppo-no-kl", "ppo-s-updates"),
    "With hindsight imitation": (
        *("ppo-s-updates", "ppo-s-hindsight", "grpo-s-updates", "grpo-s-hindsight"),
    ),
    "Recipes of the field": (
        *("ppo-s-updates", "ppo-s-iterations", "field-grpo", "sampo", "sapo", "cispo", "epo"),
        *("clip-cov", "kl-cov", "mismatch", "tis"),
    ),
}


@dataclass(frozen=True)
class Run:
    """A cell of the grid with its variant, rate and seed."""

    variant: str
    rate: float
    seed: int
    cell: Cell


def read(folder: Path, planned: Iterable[Run]) -> list[tuple[RunSummary, Mapping[str, Any]]]:
    """Return the finished runs, each with its summary and its metrics by iteration."""
    grid = Grid(folder)
    found = []
    for run in planned:
        results = grid.results(run.cell) if grid.is_done(run.cell) else None
        if results is not None:
            summary = collapse_study.summarize(results, run.variant, run.rate, run.seed)
            found.append((summary, results["history"]))
    return found


def write_report(folder: Path, planned: Sequence[Run]) -> None:
    """Write ``laboratory.json``, ``laboratory.md`` and, where it can be drawn, the figure."""
    found = read(folder, planned)
    if not found:
        print("no run is done: there is nothing to report")
        return
    summaries = [summary for summary, _ in found]
    text = markdown(summaries, len(planned))
    facts = json.dumps({"runs": [asdict(s) for s in summaries]}, indent=1)
    (folder / "laboratory.json").write_text(facts + "\n", encoding="utf-8")
    (folder / "laboratory.md").write_text(text, encoding="utf-8")
    print(text)
    try:
        from benchmarks.laboratory_figure import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("no figure: it needs matplotlib, the extra figures")
    else:
        draw(folder / "laboratory.png", found)


def markdown(runs: Sequence[RunSummary], planned: int) -> str:
    """Write all tables."""
    parts = [f"# Laboratory\n\n{len(runs)} of {planned} runs.", DEFINITIONS]
    shown: set[str] = set()
    for title, variants in COMPARISONS.items():
        chosen = [run for run in runs if run.variant in variants]
        if {run.variant for run in chosen} - shown:  # else it would repeat the table above
            parts.append(f"## {title}\n\n{collapse_table(chosen)}\n\n{breaking_table(chosen)}")
            shown |= {run.variant for run in chosen}
    savings = savings_table(runs)
    if savings:
        parts.append(f"## What the filter saves\n\n{savings}")
    parts.append(f"## The alarm\n\n{alarm_table(runs)}")
    return "\n\n".join(parts) + "\n"


DEFINITIONS = (
    f"*Collapsed*: success of the unfiltered rollout, a moving average over "
    f"{collapse_study.WINDOW} iterations, stays below {collapse_study.FALLEN:.0%} of its own peak "
    f"for {collapse_study.DURATION} iterations. *Healthy*: it never falls below "
    f"{collapse_study.HEALTHY:.0%} of it. *Worn*: in between. Leads are iterations from the first "
    "alarm to the first of those ten; ranges in brackets are over seeds."
)


def collapse_table(runs: Sequence[RunSummary]) -> str:
    """Tabulate outcomes by variant and rate."""
    header = [
        *("variant", "rate", "collapsed", "healthy", "collapse at", "peak", "final", "eval_set"),
        *("updates", "update tokens", "sampled tokens", "seconds"),
    ]
    rows = []
    for (variant, rate), part in groups(runs).items():
        falls = [run.collapsed_at for run in part if run.collapsed_at is not None]
        rows.append(
            [
                NAMES[variant],
                f"{rate:g}",
                f"{len(falls)}/{len(part)}",
                f"{sum(run.outcome == 'healthy' for run in part)}/{len(part)}",
                f"{median(falls):g}" if falls else "–",
                spread([run.peak for run in part]),
                spread([run.final for run in part]),
                spread([run.eval_set for run in part]),
                f"{fmean(run.updates for run in part):.0f}",
                f"{fmean(run.update_tokens for run in part) / 1e3:.0f} k",
                f"{fmean(run.sampled_tokens for run in part) / 1e3:.0f} k",
                f"{fmean(run.seconds for run in part):.0f}",
            ]
        )
    return table(header, rows)


def breaking_table(runs: Sequence[RunSummary]) -> str:
    """Tabulate the rate at which each variant collapses."""
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        part = [run for run in runs if run.variant == variant]
        rate = breaking_rate(part)
        fell = sum(run.outcome == "collapsed" for run in part)
        highest = max(run.rate for run in part)
        where = f"above {highest:g}" if rate is None else f"{rate:g}"
        rows.append([NAMES[variant], where, f"{fell}/{len(part)}"])
    return table(["variant", "rate at which half of the seeds collapse", "collapsed in all"], rows)


def savings_table(runs: Sequence[RunSummary]) -> str:
    """Compare cost with vanilla StarPO's over the rates and seeds that both ran."""
    rows = []
    for variant in dict.fromkeys(run.variant for run in runs):
        vanilla = {
            (r.rate, r.seed): r for r in runs if r.variant == variant.partition("-")[0] != variant
        }
        pairs = [
            (run, vanilla[run.rate, run.seed])
            for run in runs
            if run.variant == variant and (run.rate, run.seed) in vanilla
        ]
        if pairs:
            rows.append(
                [NAMES[variant], str(len(pairs))]
                + [
                    f"{1 - sum(getattr(a, key) for a, _ in pairs) / total:.0%}"
                    if (total := sum(getattr(b, key) for _, b in pairs))
                    else "–"
                    for key in ("seconds", "update_tokens", "updates")
                ]
            )
    header = ["variant", "pairs of runs", "fewer seconds", "fewer update tokens", "fewer updates"]
    return table(header, rows) if rows else ""


def alarm_table(runs: Sequence[RunSummary]) -> str:
    """Grade the detector over all runs and by variant."""
    parts = {"all": list(runs)} | {
        NAMES[name]: [run for run in runs if run.variant == name]
        for name in dict.fromkeys(run.variant for run in runs)
    }
    rows = [
        [name, color, *_graded(grade(part, color))]
        for name, part in parts.items()
        for color in (("amber", "red") if part else ())
    ]
    header = ["runs", "alarm", "collapses", "median lead", "worst lead", "missed or late", "false"]
    return table(header, rows)


def _graded(found: AlarmGrade) -> list[str]:
    return [
        str(found.collapses),
        lead(found.median_lead),
        lead(found.worst_lead),
        str(found.missed),
        f"{found.false_alarms} of {found.healthy} healthy",
    ]


def lead(value: float) -> str:
    """Format a lead in iterations; −∞ is an alarm that never came."""
    if math.isnan(value):
        return "–"
    return "never" if math.isinf(value) else f"{value:g}"


def groups(runs: Iterable[RunSummary]) -> dict[tuple[str, float], list[RunSummary]]:
    """Group runs over seeds, in the order of the variants' names and of rates."""
    order = list(NAMES)
    found: dict[tuple[str, float], list[RunSummary]] = {}
    for run in sorted(runs, key=lambda run: (order.index(run.variant), run.rate, run.seed)):
        found.setdefault((run.variant, run.rate), []).append(run)
    return found


def spread(values: Sequence[float]) -> str:
    """Write mean and range of shares over seeds, in per cent."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    return f"{100 * fmean(known):.0f} [{100 * min(known):.0f}, {100 * max(known):.0f}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
