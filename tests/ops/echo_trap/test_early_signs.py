"""Amber comes ahead of a fall, red with it, and neither for a healthy run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from ragen_pl.ops.echo_trap.assess import Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from tests.ops.echo_trap.histories import BASELINE, THRESHOLDS, assessments, first, look

SEEDS = range(12)
Run = Callable[[random.Random], list[Indicators]]


def ramp(t: int, start: int, length: int) -> float:
    """Go from 0 to 1."""
    return min(1.0, max(0.0, (t - start) / length))


def slow_decline(rng: random.Random) -> list[Indicators]:
    """A rate somewhat too high: the format rate falls and entropy rises while success decays."""
    runs = []
    for t in range(90):
        ill = ramp(t, 30, 40)
        runs.append(
            look(
                rng,
                success=(0.3 + 0.3 * ramp(t, 0, 25)) * (1 - ill),
                valid_format=0.99 - 0.7 * ill,
                entropy=0.4 - 0.2 * ramp(t, 0, 25) + 1.5 * ill,
                in_group_std=2.0 * (1 - 0.9 * ill),
                zero_std_fraction=0.1 + 0.8 * ill,
                penalty_share=ill**4,
                response_length=10 * (1 + 2 * ill),
                mean_return=3.0 - 3.5 * ill,
            )
        )
    return runs


def template(rng: random.Random) -> list[Indicators]:
    """Valid, increasingly certain and independent of the state; no gain before success falls."""
    return [
        look(
            rng,
            success=0.3 * (1 - ramp(t, 45, 15)),
            entropy=0.4 * 0.9 ** max(0, t - 15),
            in_group_std=2.0 * 0.95 ** max(0, t - 15),
            zero_std_fraction=0.1 + 0.8 * ramp(t, 20, 30),
            mean_return=2.0 - 3.0 * ramp(t, 45, 15),
        )
        for t in range(75)
    ]


def abrupt(rng: random.Random, onset: int = 40) -> list[Indicators]:
    """One update too large: within two iterations no response is valid."""
    runs = []
    for t in range(onset + 20):
        ill = ramp(t, onset, 2)
        runs.append(
            look(
                rng,
                success=0.5 * (1 - ill),
                valid_format=0.99 * (1 - ill),
                entropy=0.4 + 3 * ill,
                in_group_std=2.0 * (1 - ill),
                zero_std_fraction=0.1 + 0.9 * ill,
                penalty_share=ill,
                response_length=10 + 30 * ill,
                mean_return=3.0 - 3.5 * ill,
            )
        )
    return runs


def noisy_start(rng: random.Random) -> list[Indicators]:
    """Everything varies a lot for ten iterations, then learning sets in."""
    runs = []
    for t in range(100):
        wild = 1 - ramp(t, 0, 12)
        runs.append(
            look(
                rng,
                success=0.2 + 0.1 * wild * rng.uniform(-1, 1) + 0.5 * ramp(t, 12, 50),
                entropy=0.5 * (1 + 0.3 * wild * rng.uniform(-1, 1)) * (1 - 0.6 * ramp(t, 12, 50)),
                in_group_std=2.0 * (1 + 0.4 * wild * rng.uniform(-1, 1)),
                valid_format=0.9 + 0.08 * ramp(t, 0, 15),
                mean_return=1.0 + 4.0 * ramp(t, 12, 50),
            )
        )
    return runs


def longer_thoughts(rng: random.Random) -> list[Indicators]:
    """Responses grow because thinking pays: a single sign."""
    return [
        look(
            rng,
            success=0.3 + 0.5 * ramp(t, 5, 60),
            response_length=10 + 20 * ramp(t, 5, 60),
            entropy=0.4 - 0.3 * ramp(t, 5, 60),
            in_group_std=2.0 - 1.5 * ramp(t, 20, 60),
            mean_return=2.0 + 4.0 * ramp(t, 5, 60),
        )
        for t in range(100)
    ]


def plateau(rng: random.Random) -> list[Indicators]:
    """Nothing gets better, nothing gets worse."""
    return [look(rng) for _ in range(120)]


def fall(run: list[Indicators]) -> int:
    """Return when smoothed success falls below half of its peak for ten iterations."""
    smoothed, total, weight = [], 0.0, 0.0
    for indicators in run:
        total, weight = 0.8 * total + indicators.success, 0.8 * weight + 1.0
        smoothed.append(total / weight)
    return next(
        t
        for t in range(2, len(run) - 9)
        if max(smoothed[t : t + 10]) < 0.5 * max(smoothed[1 : t + 1])
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", [noisy_start, longer_thoughts, plateau], ids=lambda r: r.__name__)
def test_healthy_runs_stay_green(run: Run, seed: int) -> None:
    assert {v.reason for v in assessments(run(random.Random(seed)))} == {""}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", [slow_decline, template], ids=lambda run: run.__name__)
def test_amber_is_five_iterations_ahead_of_a_slow_fall(run: Run, seed: int) -> None:
    history = run(random.Random(seed))
    judged = assessments(history)
    assert first(judged, Level.AMBER) <= fall(history) - 5
    assert 10 < first(judged, Level.AMBER) < first(judged, Level.RED) <= fall(history) + 3


@pytest.mark.parametrize("seed", SEEDS)
def test_amber_precedes_the_average_in_an_abrupt_fall(seed: int) -> None:
    history = abrupt(random.Random(seed))
    judged = assessments(history)
    assert 40 < first(judged, Level.AMBER) <= 42
    assert first(judged, Level.AMBER) <= fall(history) - 2
    assert first(judged, Level.AMBER) < first(judged, Level.RED) <= fall(history) + 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("onset", [5, 7, 9])
def test_a_fall_within_the_baseline_is_found_immediately(onset: int, seed: int) -> None:
    judged = assessments(abrupt(random.Random(seed), onset))
    assert onset < first(judged, Level.AMBER) <= onset + 3
    assert first(judged, Level.RED) <= onset + 6


def test_the_reason_names_every_sign() -> None:
    calm = {"in_group_std": 2.0, "zero_std_fraction": 0.1, "penalty_share": 0.0, "mean_return": 3.0}
    usual = Indicators(
        **calm, entropy=0.2, valid_format=1.0, success=0.5, grad_norm=1.0, response_length=10.0
    )
    odd = Indicators(
        **calm, entropy=1.0, valid_format=0.6, success=0.5, grad_norm=900.0, response_length=20.0
    )
    assessment = assess([usual] * 20 + [odd], BASELINE, THRESHOLDS)
    assert assessment.level is Level.AMBER
    assert assessment.reason == (
        "early signs: 80% of turns follow the format (best 100%) and responses have 15 tokens "
        "(baseline 10) and entropy is 0.6 (it was 0.2) and the policy's gradient norm is 30 "
        "(baseline 1)"
    )


def test_two_signs_must_last_and_three_need_not() -> None:
    rng = random.Random(0)
    usual = [look(rng) for _ in range(20)]
    two = look(rng, valid_format=0.6, response_length=30.0)
    three = look(rng, valid_format=0.6, response_length=30.0, entropy=3.0)
    assert [v.level for v in assessments([*usual, two, two])[20:]] == [Level.GREEN, Level.AMBER]
    assert assessments([*usual, three])[20].level is Level.AMBER
    patient = CollapseThresholds(early_signs=3, early_patience=3)
    levels = [v.level for v in assessments([*usual, three, three, three], patient)[20:]]
    assert levels == [Level.GREEN, Level.GREEN, Level.AMBER]


def test_early_signs_can_be_switched_off() -> None:
    rng = random.Random(0)
    history = [look(rng) for _ in range(20)]
    history += [look(rng, valid_format=0.85, entropy=0.75, response_length=30.0)] * 10
    off = CollapseThresholds(early_signs=99)
    assert first(assessments(history), Level.AMBER) < 30
    assert first(assessments(history, off), Level.AMBER) > 30


def test_lost_std_and_entropy_are_no_sign_once_success_has_risen() -> None:
    rng = random.Random(0)
    poor = {"entropy": 0.05, "in_group_std": 0.5}
    start = [look(rng, success=0.3, mean_return=2.0) for _ in range(15)]
    stuck = [look(rng, success=0.3, mean_return=2.0, **poor) for _ in range(15)]
    better = [look(rng, success=0.55, mean_return=5.0, **poor) for _ in range(15)]
    assert first(assessments(start + stuck), Level.AMBER) < 22
    assert first(assessments(start + better), Level.AMBER) > 30


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("early_signs", 0),
        ("early_patience", 0),
        ("solved_success", 1.5),
        ("solved_success", -0.1),
        ("max_approx_kl", 0.0),
    ],
)
def test_bad_thresholds_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"thresholds.{key} is {value}"):
        CollapseThresholds(**cast(Any, {key: value}))
