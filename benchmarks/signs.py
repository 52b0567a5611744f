"""A race of the signs of the Echo Trap, old and new, on recorded runs.

``python benchmarks/signs.py FOLDER… [--horizon 5] [--out signs.md]``

Reads the history of every finished run below the folders, such as a laboratory's, and grades each
sign by itself: collapses that it came before and its median lead; false alarms in healthy runs;
AUROC over runs, and over iterations at a fixed horizon (``sign_grades``). Runs collapse, wear or
stay healthy by ``collapse_study``'s definition, which no sign has a part in. Every score uses what
was known when the collection was judged: metrics of an update count from the next collection on.

The last columns grade every sign, also those without a threshold of their own, at thresholds that
runs of other seeds gave: the lowest without a false alarm there. The alarm is graded as the runs
recorded it, and as its present rules judge what they recorded.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # started as a file, the packages beside it must be found
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.collapse_study import Outcome, collapse_iteration, outcome, series
from benchmarks.laboratory_report import DEFINITIONS, lead, table
from benchmarks.sign_grades import (
    SILENT,
    ScoredRun,
    SignGrade,
    auroc_at_horizon,
    auroc_of_runs,
    grade_on_other_folds,
    grade_sign,
)
from ragen_pl.ops.echo_trap import CollapseThresholds, Indicators, assess
from ragen_pl.ops.echo_trap import thresholds as limits
from ragen_pl.ops.echo_trap.eruption import BEGINS, find_bursts
from ragen_pl.ops.echo_trap.indicators import MIN_ITERATIONS, Smoothed

History = Mapping[str, Sequence[float | None]]
"""A run's metrics by name, one value per iteration of RL; None where it was not measured."""
Score = Callable[[History], list[float]]
"""Function from a run's history to a sign's score after each collection."""
BASELINE = 10
"""Iterations of the baseline, as the detector's default."""
_ROUNDING = 1e-5
"""KL, in nats, that rounding alone can cause, as in the detector."""


# --- scores ---------------------------------------------------------------------------------------


def known_values(history: History, metric: str) -> list[float | None]:
    """Return a metric as it is known when each collection is judged: an update's one later."""
    missing: list[float | None] = [None] * len(history["rollout/success"])
    values = list(history.get(metric, missing))
    return [None, *values[:-1]] if metric.startswith("train/") else values


def smoothed_score(
    metric: str, smoothing: float, score: Callable[[Smoothed], float], least: int = MIN_ITERATIONS
) -> Score:
    """Return the score that is a function of a metric's moving average, its baseline and extremes.

    Args:
        metric: Name of the metric.
        smoothing: Weight of the past in the average.
        score: The function; higher is worse.
        least: Values from which on the score is known.
    """

    def scores(history: History) -> list[float]:
        found, values = list[float](), list[float]()
        for value in known_values(history, metric):
            values += [] if value is None else [value]
            enough = len(values) >= least
            found.append(score(Smoothed(values, BASELINE, smoothing)) if enough else SILENT)
        return found

    return scores


def kl_score(metric: str) -> Score:
    """Return the smoothed KL of updates, a geometric mean in nats per token."""

    def scores(history: History) -> list[float]:
        logs = [
            math.log(v) if v is not None and v > _ROUNDING else None
            for v in known_values(history, metric)
        ]
        slow = smoothed_score("log", limits.SMOOTHING, lambda s: math.exp(s.now), least=2)
        return slow({"rollout/success": logs, "log": logs})

    return scores


def _log_norm_score(history: History) -> list[float]:
    logs = [math.log(v) if v else None for v in known_values(history, "train/grad_norm_policy")]
    ratio = smoothed_score("log", limits.SMOOTHING, lambda s: math.exp(s.now - s.baseline))
    return ratio({"rollout/success": logs, "log": logs})


def _burst_height(average: Smoothed) -> float:
    bursts = find_bursts(average.smoothed[1:])
    return bursts.height if bursts.is_present else min(bursts.height, BEGINS)


def _later_bursts(average: Smoothed) -> float:
    return float(find_bursts(average.smoothed[1:]).count)


def recorded_alarm(history: History) -> list[float]:
    """Return the level that the run's own detector gave each collection."""
    levels = known_values(history, "collapse/level")
    return [SILENT if level is None else level for level in levels]


def replayed_alarm(history: History) -> list[float]:
    """Return the level that the present rules give each collection.

    Of the share of trajectories without a valid turn only an average was recorded, which stands in
    for it: a red for that reason may come an iteration later than live.
    """
    found, columns = list[Indicators](), {}
    for name in _INDICATORS.values():
        columns[name] = known_values(history, name)
    updates, kl, update_kl = (
        known_values(history, f"train/{name}") for name in ("updates", "approx_kl", "update_kl")
    )
    levels = list[float]()
    for at in range(len(history["rollout/success"])):
        facts: dict[str, Any] = {key: columns[name][at] for key, name in _INDICATORS.items()}
        facts["penalty_share"] = facts["penalty_share"] or 0.0
        several, single = (updates[at] or 0) > 1, updates[at] == 1
        facts["approx_kl"] = _above_rounding(kl[at]) if several else None
        facts["update_kl"] = _above_rounding(update_kl[at]) if single else None
        found.append(Indicators(**facts))
        levels.append(float(assess(found, BASELINE, CollapseThresholds()).level))
    return levels


_INDICATORS = {
    "in_group_std": "rollout/in_group_std",
    "zero_std_fraction": "rollout/zero_std_fraction",
    "entropy": "rollout/entropy",
    "valid_format": "rollout/valid_format",
    "penalty_share": "collapse/penalty_share",
    "success": "rollout/success",
    "mean_return": "rollout/return",
    "grad_norm": "train/grad_norm_policy",
    "response_length": "rollout/response_length",
}


def _above_rounding(kl: float | None) -> float | None:
    return kl if kl is not None and kl > _ROUNDING else None


# --- signs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sign:
    """A sign of collapse."""

    name: str
    score: Score
    when: str = ""
    """When it is raised, in words; empty without a threshold of its own."""
    threshold: float = math.nan


_SLOW, _FAST = limits.SMOOTHING, limits.EARLY_SMOOTHING


def _rise(average: Smoothed) -> float:
    """Return entropy over its lowest value; 1 for rises that the alarm ignores."""
    is_rise = average.now - average.lowest > 0.05 and average.lowest > 0
    return average.now / average.lowest if is_rise else 1.0


SIGNS = (
    Sign("alarm, recorded: amber", recorded_alarm, "amber or red", 0.5),
    Sign("alarm, recorded: red", recorded_alarm, "red", 1.5),
    Sign("alarm, present rules: amber", replayed_alarm, "amber or red", 0.5),
    Sign("alarm, present rules: red", replayed_alarm, "red", 1.5),
    Sign(
        "success falls",
        smoothed_score("rollout/success", _FAST, lambda s: -s.share_of_best),
        "below 80 % of its best",
        -limits.SUCCESS_EARLY_SIGN,
    ),
    Sign(
        "in-group std falls",
        smoothed_score("rollout/in_group_std", _SLOW, lambda s: -s.ratio),
        "below 50 % of its baseline",
        -limits.STD_SIGN,
    ),
    Sign(
        "groups without spread",
        smoothed_score("rollout/zero_std_fraction", _SLOW, lambda s: s.now),
        "over 60 %",
        limits.ZERO_STD_SIGN,
    ),
    Sign(
        "entropy falls",
        smoothed_score("rollout/entropy", _SLOW, lambda s: -s.ratio),
        "below half of its baseline",
        -limits.LOW_ENTROPY_SIGN,
    ),
    Sign(
        "entropy rises from its lowest",
        smoothed_score("rollout/entropy", _FAST, _rise),
        "above 1.5 times, by 0.05 nats",
        limits.ENTROPY_RISE_EARLY_SIGN,
    ),
    Sign(
        "format frays",
        smoothed_score("rollout/valid_format", _FAST, lambda s: -s.share_of_best),
        "below 90 % of its best",
        -limits.FORMAT_EARLY_SIGN,
    ),
    Sign(
        "responses grow",
        smoothed_score("rollout/response_length", _FAST, lambda s: s.ratio),
        "above 1.2 times their baseline",
        limits.RESPONSE_LENGTH_EARLY_SIGN,
    ),
    Sign(
        "gradient norm",
        _log_norm_score,
        "above 5 times its baseline",
        limits.GRAD_NORM_SIGN,
    ),
    Sign("clip fraction", smoothed_score("train/clip_fraction", _SLOW, lambda s: s.now, 2)),
    Sign(
        "approximate KL of several updates",
        kl_score("train/approx_kl"),
        "above 0.015 nats a token",
        CollapseThresholds().max_approx_kl,
    ),
    Sign(
        "KL of the iteration's update",
        kl_score("train/update_kl"),
        "above 0.015 nats a token",
        CollapseThresholds().max_approx_kl,
    ),
    Sign(
        "effective sample size of the update",
        smoothed_score("train/update_ess", _SLOW, lambda s: -s.now, 2),
    ),
    Sign(
        "effective sample size of the sampler",
        smoothed_score("train/sampler_ess", _SLOW, lambda s: -s.now, 2),
    ),
    Sign(
        "good actions become less likely in an update",
        smoothed_score("train/positive_log_prob_change", _SLOW, lambda s: -s.now, 2),
        "below 0",
        0.0,
    ),
    Sign(
        "log-likelihood of good actions decays",
        smoothed_score("train/positive_log_prob", _FAST, lambda s: s.best - s.now, 3),
    ),
    Sign(
        "burst of entropy",
        smoothed_score("rollout/entropy", _FAST, _burst_height),
        "1.5 times the trough before it",
        BEGINS,
    ),
    Sign(
        "second burst of entropy",
        smoothed_score("rollout/entropy", _FAST, _later_bursts),
        "the second begins",
        1.5,
    ),
    Sign(
        "equal responses in a group",
        smoothed_score("rollout/duplicate_responses_in_group", _FAST, lambda s: s.ratio),
    ),
    Sign(
        "equal responses",
        smoothed_score("rollout/duplicate_responses", _FAST, lambda s: s.ratio),
    ),
    Sign(
        "fewer equal responses",
        smoothed_score("rollout/duplicate_responses", _FAST, lambda s: -s.ratio),
    ),
    Sign(
        "repetition within a response",
        smoothed_score("rollout/repeated_ngrams", _FAST, lambda s: s.now),
        "over 10 % of 4-grams",
        0.1,
    ),
)


# --- table ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedRun:
    """The history of a finished run, with its outcome and its seed."""

    outcome: Outcome
    collapsed_at: int | None
    history: History
    seed: str
    """Name of its folder: a laboratory's are ``…/seed20``."""


def read(folders: Iterable[Path]) -> list[RecordedRun]:
    """Read the finished runs below folders, in the order of their paths; those without RL, such as
    a warm start, are left out."""
    found = list[RecordedRun]()
    for path in sorted({p.resolve() for folder in folders for p in folder.rglob("results.json")}):
        results = json.loads(path.read_text(encoding="utf-8"))
        success = series(results["history"], "rollout/success")
        if success and results.get("status") in ("finished", "stopped"):
            at = collapse_iteration(success)
            history, seed = results["history"], path.parent.name
            found.append(RecordedRun(outcome(success), at, history, seed))
    return found


def scored(runs: Iterable[RecordedRun], sign: Sign) -> list[ScoredRun]:
    """Score the runs by a sign."""
    return [ScoredRun(run.outcome, run.collapsed_at, sign.score(run.history)) for run in runs]


def markdown(runs: Sequence[RecordedRun], horizon: int, signs: Sequence[Sign] = SIGNS) -> str:
    """Write the table of all signs that were measured."""
    kinds = [run.outcome for run in runs]
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("collapsed", "worn", "healthy"))
    header = [
        *("sign", "raised", "collapses flagged before", "median lead", "false alarms"),
        *("AUROC of runs", f"AUROC at {horizon} iterations"),
        *("flagged at other seeds' thresholds", "median lead then", "false alarms then"),
    ]
    seeds = [run.seed for run in runs]
    rows = [_row(sign, scored(runs, sign), seeds, horizon) for sign in signs]
    body = table(header, [row for row in rows if row])
    return f"# Signs of collapse\n\n{len(runs)} runs: {counts}. {DEFINITIONS}\n\n{body}\n"


def _row(sign: Sign, runs: Sequence[ScoredRun], seeds: Sequence[str], horizon: int) -> list[str]:
    """Write a sign's row; empty if no run measured it."""
    if all(run.peak() == SILENT for run in runs):
        return []
    own = grade_sign(runs, sign.threshold) if sign.when else None
    return [
        *(sign.name, sign.when or "–", *_cells(own)),
        *(_probability(auroc_of_runs(runs)), _probability(auroc_at_horizon(runs, horizon))),
        *_cells(grade_on_other_folds(runs, seeds)),
    ]


def _cells(found: SignGrade | None) -> list[str]:
    """Write collapses flagged, median lead and false alarms; dashes where nothing was graded."""
    if found is None:
        return ["–"] * 3
    alarms = f"{found.false_alarms} of {found.healthy}"
    return [of_collapses(found), lead(found.median_lead), alarms]


def of_collapses(found: SignGrade) -> str:
    """Write how many collapses a sign came before."""
    return f"{found.flagged} of {found.collapses}"


def _probability(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def main(given: Sequence[str] | None = None) -> int:
    """Grade the signs; return 1 when no run is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="folders of finished runs")
    parser.add_argument("--horizon", type=int, default=5, help="iterations before a collapse")
    parser.add_argument("--out", type=Path, help="file for the table")
    args = parser.parse_args(given)
    if args.horizon < 1:
        parser.error(f"--horizon is {args.horizon}; it must be at least 1")
    runs = read(args.folders)
    if not runs:
        print("no finished run with iterations of RL below these folders")
        return 1
    text = markdown(runs, args.horizon)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
