"""Grades of signs of a collapse: lead, false alarms and AUROC, from each sign's score by iteration.

Pure functions. A score is higher the worse a run looks; minus infinity is a sign that is not known
yet, and so silent. Iterations are of RL, counted from 0; outcomes are those of ``collapse_study``.
Worn runs are in no grade: there is no collapse to predict, and an alarm in them is not false.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.collapse_study import Outcome, lead_time

SILENT = -math.inf


@dataclass(frozen=True)
class ScoredRun:
    """A run's outcome, and one sign's score after each of its collections."""

    outcome: Outcome
    collapsed_at: int | None
    scores: Sequence[float]

    def peak(self, end: int | None = None) -> float:
        """Return the highest score of the first ``end`` iterations, or of all."""
        return max(self.scores[:end], default=SILENT)

    def first_above(self, threshold: float) -> int | None:
        """Return the first iteration whose score is above a threshold; None without one."""
        return next((i for i, score in enumerate(self.scores) if score > threshold), None)


def auroc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """Return the probability that a positive scores above a negative, ties as half; NaN where there
    are none of either."""
    if not positives or not negatives:
        return math.nan
    ordered = sorted(negatives)
    wins = sum(bisect_left(ordered, s) + bisect_right(ordered, s) for s in positives)
    return wins / (2 * len(positives) * len(ordered))


def auroc_of_runs(runs: Sequence[ScoredRun]) -> float:
    """Return the probability that a run scores higher before it collapses than a healthy one does.

    A collapsing run's peak before its collapse is compared with each healthy run's peak over
    equally many iterations, since the peak of a longer time is higher by chance.
    """
    healthy = [run for run in runs if run.outcome == "healthy"]
    shares = [
        auroc([run.peak(run.collapsed_at)], [other.peak(run.collapsed_at) for other in healthy])
        for run in runs
        if run.collapsed_at is not None and healthy
    ]
    return fmean(shares) if shares else math.nan


def auroc_at_horizon(runs: Sequence[ScoredRun], horizon: int) -> float:
    """Return the probability that an iteration at most ``horizon`` before a collapse scores above
    one that is not.

    The others are all iterations of healthy runs, and the earlier ones of collapsing runs, so that
    a score that is merely high in runs that collapse some day earns less.
    """
    near, far = list[float](), list[float]()
    for run in runs:
        if run.collapsed_at is not None:
            start = max(0, run.collapsed_at - horizon)
            near += run.scores[start : run.collapsed_at]
            far += run.scores[:start]
        elif run.outcome == "healthy":
            far += run.scores
    return auroc(near, far)


@dataclass(frozen=True)
class SignGrade:
    """How well a sign predicts collapses."""

    collapses: int
    flagged: int
    """Collapses before which it was above its threshold."""
    median_lead: float
    """Iterations from the first time above it to the collapse; −∞ where it never was, NaN without
    a collapse."""
    healthy: int
    false_alarms: int
    """Healthy runs in which it was above its threshold."""


def grade_sign(runs: Sequence[ScoredRun], threshold: float) -> SignGrade:
    """Grade a sign by the first time its score is above a threshold."""
    leads = [
        lead_time(run.first_above(threshold), run.collapsed_at)
        for run in runs
        if run.collapsed_at is not None
    ]
    healthy = [run for run in runs if run.outcome == "healthy"]
    alarms = [run.first_above(threshold) is not None for run in healthy]
    return _grade(leads, alarms)


def _grade(leads: Sequence[float], alarms: Sequence[bool]) -> SignGrade:
    """Grade the leads over collapses, and whether there was an alarm in each healthy run."""
    return SignGrade(
        len(leads),
        sum(lead > 0 for lead in leads),
        median(leads) if leads else math.nan,
        len(alarms),
        sum(alarms),
    )


def grade_on_other_folds(runs: Sequence[ScoredRun], folds: Sequence[str]) -> SignGrade | None:
    """Grade a sign at thresholds that other runs gave: each run at the lowest threshold without a
    false alarm in the healthy runs of the other folds.

    So signs without a threshold of their own, or with a bad one, stand on equal terms, and no run
    has a part in the threshold that it is graded at.

    Args:
        runs: The runs.
        folds: Each run's fold, such as its seed.

    Returns:
        The grade, without folds outside of which no healthy run has a score; None if it is so with
        all of them.
    """
    leads, alarms = list[float](), list[bool]()
    for fold in dict.fromkeys(folds):
        own = [run for run, its in zip(runs, folds, strict=True) if its == fold]
        bar = silent_threshold([run for run, its in zip(runs, folds, strict=True) if its != fold])
        for run in own if bar > SILENT else ():
            first = run.first_above(bar)
            if run.collapsed_at is not None:
                leads.append(lead_time(first, run.collapsed_at))
            elif run.outcome == "healthy":
                alarms.append(first is not None)
    return _grade(leads, alarms) if leads or alarms else None


def silent_threshold(runs: Sequence[ScoredRun]) -> float:
    """Return the lowest threshold without a false alarm: the highest score of a healthy run."""
    return max((run.peak() for run in runs if run.outcome == "healthy"), default=SILENT)
