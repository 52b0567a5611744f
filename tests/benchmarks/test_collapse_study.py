"""Outcomes of runs, on hand-made series."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.collapse_study import (
    DURATION,
    RunSummary,
    breaking_rate,
    collapse_iteration,
    fall_began,
    first_alarm,
    grade,
    is_false_alarm,
    lead_time,
    outcome,
    peaks,
    smooth,
    summarize,
)


def run(rate: float = 1e-4, **changes: Any) -> RunSummary:
    facts: dict[str, Any] = {
        "variant": "ppo",
        "rate": rate,
        "seed": 0,
        "outcome": "healthy",
        "collapsed_at": None,
        "fall_began": None,
        "amber": None,
        "red": None,
        "peak": 0.8,
        "final": 0.8,
        "eval_set": 0.8,
        "iterations": 40,
        "updates": 160.0,
        "update_tokens": 1000.0,
        "sampled_tokens": 2000.0,
        "seconds": 10.0,
    }
    return RunSummary(**facts | changes)


def test_smoothing_looks_back_only() -> None:
    assert smooth([1.0, 3.0, 5.0, 7.0], window=2) == [1.0, 2.0, 4.0, 6.0]
    assert smooth([1.0, 3.0], window=5) == [1.0, 2.0]
    assert smooth([]) == []


def test_one_lucky_collection_is_no_peak() -> None:
    assert peaks([0.9, 0.5, 0.4, 0.3, 0.6]) == [0.0, 0.0, 0.4, 0.4, 0.6]


def test_a_drop_collapses_when_the_average_is_below_half() -> None:
    # After the drop the average of five is .8, .64, .48, .32: the third is below .4's double.
    success = [0.8] * 20 + [0.0] * 15
    assert smooth(success)[20:24] == pytest.approx([0.64, 0.48, 0.32, 0.16])
    assert collapse_iteration(success) == 22
    assert outcome(success) == "collapsed"


def test_the_fall_began_where_success_left_its_peak() -> None:
    # The average at iteration 20 is .64, less than .9 · .8.
    assert fall_began([0.8] * 20 + [0.0] * 15, 22) == 20
    slow = [0.8] * 10 + [0.8 - 0.04 * i for i in range(20)] + [0.0] * 20
    at = collapse_iteration(slow)
    assert at is not None
    assert 10 < fall_began(slow, at) < at


def test_ten_iterations_make_a_collapse_and_nine_do_not() -> None:
    # The average is low from the third zero on until the second success of the recovery.
    low = 2 + DURATION
    assert collapse_iteration([0.8] * 20 + [0.0] * (low - 1) + [0.8] * 10) == 22
    assert collapse_iteration([0.8] * 20 + [0.0] * (low - 3) + [0.8] * 10) is None


def test_a_fall_cut_off_by_the_end_is_no_collapse_and_not_healthy() -> None:
    success = [0.8] * 20 + [0.0] * (2 + DURATION - 1)
    assert collapse_iteration(success) is None
    assert outcome(success) == "worn"


def test_a_recovered_run_counts_as_collapsed() -> None:
    assert outcome([0.8] * 20 + [0.0] * 20 + [0.9] * 20) == "collapsed"


@pytest.mark.parametrize("end", [0.65, 0.8, 1.0])
def test_a_run_that_stays_near_its_peak_is_healthy(end: float) -> None:
    assert outcome([0.3, 0.5, 0.7, *[0.8] * 20, *[end] * 10]) == "healthy"


def test_worn_lies_between() -> None:
    assert outcome([0.8] * 20 + [0.5] * 20) == "worn"


def test_a_run_that_fell_and_recovered_was_not_healthy() -> None:
    assert outcome([0.8] * 20 + [0.5] * 8 + [0.9] * 20) == "worn"


def test_what_never_learns_neither_collapses_nor_has_no_outcome() -> None:
    assert collapse_iteration([0.0] * 40) is None
    assert outcome([0.0] * 40) == "healthy"
    with pytest.raises(ValueError, match="no outcome"):
        outcome([])


def test_first_alarms() -> None:
    levels = [None, 0.0, 1.0, 0.0, 2.0]
    assert (first_alarm(levels, 1), first_alarm(levels, 2)) == (2, 4)
    assert first_alarm([0.0, 2.0], 1) == 1  # red without amber before
    assert first_alarm([0.0, 1.0], 2) is None


def test_leads() -> None:
    assert lead_time(12, 20) == 8
    assert lead_time(25, 20) == -5
    assert lead_time(None, 20) == -math.inf


def test_an_alarm_is_false_in_healthy_runs_only() -> None:
    assert is_false_alarm(3, "healthy")
    assert not is_false_alarm(None, "healthy")
    assert not is_false_alarm(3, "worn")
    assert not is_false_alarm(3, "collapsed")


def test_grading_over_runs() -> None:
    fallen = [
        run(outcome="collapsed", collapsed_at=at, amber=amber, red=at + 1)
        for at, amber in ((20, 12), (30, 28), (40, None))
    ]
    healthy = [run(amber=5), run(), run(outcome="worn", amber=7)]
    found = grade([*fallen, *healthy], "amber")
    assert (found.collapses, found.median_lead, found.worst_lead) == (3, 2.0, -math.inf)
    assert (found.missed, found.false_alarms, found.healthy) == (1, 1, 2)
    assert grade(fallen, "red").missed == 3
    assert math.isnan(grade(healthy, "red").median_lead)


def test_the_breaking_rate_is_the_lowest_at_which_half_collapse() -> None:
    fell: dict[str, Any] = {"outcome": "collapsed", "collapsed_at": 9}
    low = [run(1e-4), run(1e-4), run(1e-4, **fell)]
    middle = [run(2e-4), run(2e-4, **fell)]
    high = [run(4e-4, **fell)] * 2
    assert breaking_rate([*high, *low, *middle]) == 2e-4
    assert breaking_rate(low) is None


def test_a_summary_reads_results() -> None:
    success = [0.8] * 20 + [0.0] * 15
    history = {
        "rollout/success": success,
        "collapse/level": [0.0] * 18 + [1.0, 1.0, 2.0] + [2.0] * 14,
        "train/updates": [None, None, *[4.0] * 33],
        "train/update_tokens": [None, None, *[10.0] * 33],
    }
    evaluations = [{"policy": name, "success": share} for name, share in (("random", 0.1),)]
    evaluations += [{"policy": "final", "success": 0.25}, {"policy": "final", "success": 0.5}]
    content = {"history": history, "evaluations": evaluations}
    found = summarize(content | {"sampled_tokens": 7, "seconds": 3.0}, "grpo", 4e-4, 2)
    assert (found.outcome, found.collapsed_at, found.fall_began) == ("collapsed", 22, 20)
    assert (found.amber, found.red, found.eval_set) == (18, 20, 0.25)
    assert (found.updates, found.update_tokens, found.sampled_tokens) == (132, 330, 7)
    assert found.peak == pytest.approx(0.8)
    assert found.final == 0.0
