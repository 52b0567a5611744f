"""Outcomes of finished runs: whether success collapsed, when, and whether an alarm came first.

Pure functions of a run's series, one value per iteration of RL, counted from 0. *Collapse* is
defined on the smoothed success of the unfiltered rollout: below half of its own peak so far for ten
iterations in a row. The definition is independent of the detector, so that one can grade the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any, Literal

Outcome = Literal["collapsed", "worn", "healthy"]

WINDOW = 5
"""Iterations in a moving average: those up to and including this one, so that it lags by two."""
LEAST_LOOKS = 3
"""Iterations before an average counts as a peak: a single collection can be lucky."""
FALLEN = 0.5
"""Share of the peak below which success has fallen."""
DURATION = 10
"""Iterations that success must stay there."""
HEALTHY = 0.8
"""Share of the peak so far: a run whose success never falls below it is healthy. Between that and a
collapse a run is worn: there is no collapse to predict, and an alarm in it is not false."""
STARTS_FALLING = 0.9
"""Share of the peak: the fall begins after success was last above it."""


def smooth(values: Sequence[float], window: int = WINDOW) -> list[float]:
    """Average each value with those before it, ``window`` in all or as many as there are."""
    parts = [values[max(0, i - window + 1) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def peaks(smoothed: Sequence[float]) -> list[float]:
    """Return the highest value so far at every iteration; 0 before ``LEAST_LOOKS``."""
    counted = [value if i >= LEAST_LOOKS - 1 else 0.0 for i, value in enumerate(smoothed)]
    return list(accumulate(counted, max))


def collapse_iteration(success: Sequence[float]) -> int | None:
    """Return the first of the ``DURATION`` iterations of a collapse; None without one.

    A fall that the end of the run cuts off does not count: the run is *worn*.
    """
    smoothed = smooth(success)
    low = [now < FALLEN * peak for now, peak in zip(smoothed, peaks(smoothed), strict=True)]
    for start in range(len(low) - DURATION + 1):
        if all(low[start : start + DURATION]):
            return start
    return None


def fall_began(success: Sequence[float], collapsed_at: int) -> int:
    """Return the iteration after the last one near the peak, at most ``collapsed_at``."""
    smoothed = smooth(success)
    bar = STARTS_FALLING * peaks(smoothed)[collapsed_at]
    return max((i + 1 for i in range(collapsed_at) if smoothed[i] >= bar), default=0)


def outcome(success: Sequence[float]) -> Outcome:
    """Return the outcome of a run.

    Raises:
        ValueError: for a run without iterations.
    """
    if not success:
        raise ValueError("a run without an iteration of RL has no outcome")
    if collapse_iteration(success) is not None:
        return "collapsed"
    smoothed = smooth(success)
    held = all(now >= HEALTHY * peak for now, peak in zip(smoothed, peaks(smoothed), strict=True))
    return "healthy" if held else "worn"


def first_alarm(levels: Sequence[float | None], least: int) -> int | None:
    """Return the first iteration graded ``least`` (1 amber, 2 red) or above; None without one."""
    return next((i for i, v in enumerate(levels) if v is not None and v >= least), None)


def lead_time(alarm: int | None, collapsed_at: int) -> float:
    """Return by how many iterations the alarm came first: negative when late, −∞ when it never did.

    Any earlier alarm counts, so this is reported beside the false alarms, never alone.
    """
    return -math.inf if alarm is None else float(collapsed_at - alarm)


def is_false_alarm(alarm: int | None, how: Outcome) -> bool:
    """Whether the alarm came in a healthy run."""
    return alarm is not None and how == "healthy"


@dataclass(frozen=True)
class RunSummary:
    """The figures of one run in the tables."""

    variant: str
    rate: float
    seed: int
    outcome: Outcome
    collapsed_at: int | None
    fall_began: int | None
    amber: int | None
    """First iteration graded amber or red."""
    red: int | None
    peak: float
    """Highest smoothed success of rollouts."""
    final: float
    eval_set: float
    """Success of the final policy on the first evaluation set."""
    iterations: int
    updates: float
    """Updates of the policy."""
    update_tokens: float
    sampled_tokens: float
    seconds: float
    """Wall time of the run without start-up, evaluations included."""


def summarize(results: Mapping[str, Any], variant: str, rate: float, seed: int) -> RunSummary:
    """Summarize a run from its ``results.json``, which holds iterations of RL only.

    Raises:
        ValueError: when it holds none.
    """
    history = results["history"]
    success = series(history, "rollout/success")
    how = outcome(success)
    collapsed_at = collapse_iteration(success)
    levels = history.get("collapse/level", [])
    smoothed = smooth(success)
    eval_sets = [e for e in results["evaluations"] if e["policy"] == "final"]
    return RunSummary(
        variant,
        rate,
        seed,
        how,
        collapsed_at,
        None if collapsed_at is None else fall_began(success, collapsed_at),
        first_alarm(levels, 1),
        first_alarm(levels, 2),
        peak=peaks(smoothed)[-1],
        final=smoothed[-1],
        eval_set=eval_sets[0]["success"] if eval_sets else math.nan,
        iterations=len(success),
        updates=sum(series(history, "train/updates")),
        update_tokens=sum(series(history, "train/update_tokens")),
        sampled_tokens=results["sampled_tokens"],
        seconds=results["seconds"],
    )


def series(history: Mapping[str, Sequence[float | None]], name: str) -> list[float]:
    """Return a metric's values, without the iterations that have none."""
    return [value for value in history.get(name, []) if value is not None]


def breaking_rate(runs: Iterable[RunSummary]) -> float | None:
    """Return the lowest rate at which at least half of one variant's runs collapsed."""
    by_rate: dict[float, list[bool]] = {}
    for run in runs:
        by_rate.setdefault(run.rate, []).append(run.outcome == "collapsed")
    broken = [rate for rate, fell in by_rate.items() if 2 * sum(fell) >= len(fell)]
    return min(broken, default=None)


@dataclass(frozen=True)
class AlarmGrade:
    """How well an alarm predicted collapses."""

    collapses: int
    median_lead: float
    worst_lead: float
    missed: int
    """Collapses with no alarm before success had fallen."""
    healthy: int
    false_alarms: int


def grade(runs: Sequence[RunSummary], color: Literal["amber", "red"]) -> AlarmGrade:
    """Grade the first amber or the first red over runs; leads are NaN without a collapse."""
    fallen = [(getattr(run, color), run.collapsed_at) for run in runs]
    leads = [lead_time(alarm, at) for alarm, at in fallen if at is not None]
    healthy = [run for run in runs if run.outcome == "healthy"]
    return AlarmGrade(
        len(leads),
        median(leads) if leads else math.nan,
        min(leads, default=math.nan),
        sum(lead <= 0 for lead in leads),
        len(healthy),
        sum(is_false_alarm(getattr(run, color), run.outcome) for run in healthy),
    )
