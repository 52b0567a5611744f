"""The alarm on synthetic runs: none on healthy ones, red on collapsing ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from ragen_pl.ops.echo_trap.assess import Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds

BASELINE = 10
PATIENCE = 5
SEEDS = range(12)
Run = Callable[[random.Random], list[Indicators]]


def toward(start: float, end: float, t: int, half_life: float) -> float:
    return end + (start - end) * math.pow(0.5, t / half_life)


def noisy(rng: random.Random, value: float, deviation: float) -> float:
    return min(1.0, max(0.0, rng.gauss(value, deviation)))


def sokoban(rng: random.Random, length: int = 150, noise: float = 0.04) -> list[Indicators]:
    """Success .3 → .85, std 3.8 → .2, entropy .39 → .03, gradients .7 → 5."""
    runs = []
    for t in range(length):
        success = noisy(rng, toward(0.3, 0.85, t, 15), noise)
        spread = max(0.05, rng.gauss(toward(3.8, 0.2, t, 35), 0.3))
        runs.append(
            Indicators(
                in_group_std=spread,
                zero_std_fraction=noisy(rng, toward(0.05, 0.9, t, 35), 0.08),
                entropy=max(0.01, rng.gauss(toward(0.39, 0.03, t, 30), 0.01)),
                valid_format=noisy(rng, 0.98, 0.01),
                penalty_share=0.0,
                success=success,
                mean_return=11 * success - 1.5,
                grad_norm=None if t < 5 else toward(0.7, 3.0, t, 60) * rng.lognormvariate(0, 0.4),
            )
        )
    return runs


def coarse_sokoban(rng: random.Random) -> list[Indicators]:
    """The same with eight rooms a collection, by whose luck success varies by ten points."""
    return sokoban(rng, noise=0.1)


def frozen_lake(rng: random.Random) -> list[Indicators]:
    """Success .4 → .7; the std is due to slippery ice and stays."""
    runs = []
    for t in range(150):
        success = noisy(rng, toward(0.4, 0.7, t, 30), 0.05)
        runs.append(
            Indicators(
                in_group_std=max(0.05, rng.gauss(math.sqrt(success * (1 - success)) * 0.8, 0.06)),
                zero_std_fraction=noisy(rng, toward(0.05, 0.3, t, 50), 0.1),
                entropy=max(0.02, rng.gauss(toward(0.5, 0.1, t, 40), 0.03)),
                valid_format=noisy(rng, 0.97, 0.02),
                penalty_share=0.0,
                success=success,
                mean_return=success - 0.05,
                grad_norm=rng.lognormvariate(0, 0.6),
            )
        )
    return runs


def bandit(rng: random.Random) -> list[Indicators]:
    """Success .3 → .97 while half of the format is learned; payoffs are very noisy."""
    runs = []
    for t in range(100):
        success = noisy(rng, toward(0.3, 0.97, t, 12), 0.04)
        runs.append(
            Indicators(
                in_group_std=max(0.05, rng.gauss(toward(0.2, 0.43, t, 12), 0.08)),
                zero_std_fraction=noisy(rng, 0.02, 0.05),
                entropy=max(0.005, rng.gauss(toward(0.6, 0.03, t, 12), 0.03)),
                valid_format=noisy(rng, toward(0.5, 0.98, t, 10), 0.03),
                penalty_share=noisy(rng, toward(0.5, 0.02, t, 10), 0.03),
                success=success,
                mean_return=rng.gauss(0.1 + 0.15 * success, 0.06),
                grad_norm=rng.lognormvariate(0, 0.6),
            )
        )
    return runs


def steady_bandit(rng: random.Random) -> list[Indicators]:
    """The good arm always pays the same: at the end every group has zero std."""
    return [
        Indicators(
            in_group_std=max(0.0, rng.gauss(toward(0.4, 0.0, t, 8), 0.03)),
            zero_std_fraction=noisy(rng, toward(0.0, 1.0, t, 10), 0.05),
            entropy=toward(0.6, 0.001, t, 10),
            valid_format=1.0,
            penalty_share=0.0,
            success=noisy(rng, toward(0.3, 1.0, t, 8), 0.03),
            mean_return=toward(0.3, 1.0, t, 8),
            grad_norm=toward(1.0, 1e-4, t, 10),
        )
        for t in range(100)
    ]


def warm_start_left_nothing_to_gain(rng: random.Random) -> list[Indicators]:
    """A policy that was good from the start becomes certain."""
    return [
        Indicators(
            in_group_std=max(0.05, rng.gauss(toward(3.0, 0.2, t, 15), 0.2)),
            zero_std_fraction=noisy(rng, toward(0.2, 0.95, t, 20), 0.05),
            entropy=toward(0.2, 0.02, t, 15),
            valid_format=0.99,
            penalty_share=0.0,
            success=noisy(rng, 0.75, 0.04),
            mean_return=rng.gauss(7.0, 0.5),
            grad_norm=rng.lognormvariate(0, 0.6),
        )
        for t in range(120)
    ]


def slow_starter(rng: random.Random) -> list[Indicators]:
    """A model that first has to find the format."""
    return [
        Indicators(
            in_group_std=max(0.0, rng.gauss(toward(0.05, 1.5, max(0, t - 20), 15), 0.02)),
            zero_std_fraction=noisy(rng, toward(0.9, 0.1, max(0, t - 20), 15), 0.05),
            entropy=rng.gauss(1.0, 0.05),
            valid_format=noisy(rng, toward(0.01, 0.95, t, 25), 0.01),
            penalty_share=noisy(rng, toward(0.99, 0.02, t, 20), 0.01),
            success=noisy(rng, toward(0.0, 0.4, max(0, t - 15), 25), 0.02),
            mean_return=toward(-0.5, 1.0, t, 30),
            grad_norm=rng.lognormvariate(0, 0.6),
        )
        for t in range(100)
    ]


HEALTHY: list[Run] = [
    sokoban,
    coarse_sokoban,
    frozen_lake,
    bandit,
    steady_bandit,
    warm_start_left_nothing_to_gain,
]


def broken_format(rng: random.Random, onset: int) -> list[Indicators]:
    """Far too high a learning rate: the format breaks and everything with it."""
    runs = sokoban(rng, onset)
    for t in range(40):
        alive = 0.5 ** (t / 1.5)
        success = noisy(rng, 0.5 * alive, 0.03 if alive > 0.05 else 0.0)
        runs.append(
            Indicators(
                in_group_std=3.0 * alive,
                zero_std_fraction=1 - alive,
                entropy=0.3 + 2.0 * (1 - alive),
                valid_format=alive,
                penalty_share=1 - alive,
                success=success,
                mean_return=toward(3.0, -0.5, t, 1.5),
                grad_norm=rng.lognormvariate(3, 1),
            )
        )
    return runs


def one_template(rng: random.Random, onset: int) -> list[Indicators]:
    """One response whatever the state: valid, certain and useless."""
    runs = sokoban(rng, onset)
    for t in range(40):
        alive = 0.5 ** (t / 3)
        runs.append(
            Indicators(
                in_group_std=max(0.0, rng.gauss(3.0 * alive, 0.02)),
                zero_std_fraction=noisy(rng, 1 - alive, 0.03),
                entropy=0.01 + 0.3 * alive,
                valid_format=1.0,
                penalty_share=0.0,
                success=noisy(rng, 0.02 + 0.45 * alive, 0.03),
                mean_return=toward(3.0, -1.0, t, 3),
                grad_norm=rng.lognormvariate(0, 0.5),
            )
        )
    return runs


def levels(run: list[Indicators]) -> Iterator[Level]:
    thresholds = CollapseThresholds()
    return (assess(run[: t + 1], BASELINE, thresholds).level for t in range(len(run)))


def stop_iteration(run: list[Indicators]) -> int | None:
    streak = 0
    for t, level in enumerate(levels(run)):
        streak = streak + 1 if level is Level.RED else 0
        if streak == PATIENCE:
            return t
    return None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("run", HEALTHY, ids=lambda run: run.__name__)
def test_healthy_runs_raise_no_alarm(run: Run, seed: int) -> None:
    assert set(levels(run(random.Random(seed)))) == {Level.GREEN}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_starter_is_not_stopped(seed: int) -> None:
    assert stop_iteration(slow_starter(random.Random(seed))) is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("onset", [0, 3, 10, 30])
@pytest.mark.parametrize("run", [broken_format, one_template])
def test_collapse_is_caught(
    run: Callable[[random.Random, int], list[Indicators]], onset: int, seed: int
) -> None:
    stop = stop_iteration(run(random.Random(seed), onset))
    assert stop is not None
    assert onset <= stop <= max(onset, BASELINE) + 20


def flat(**changes: float) -> Indicators:
    values = {
        "in_group_std": 1.0,
        "zero_std_fraction": 0.1,
        "entropy": 0.5,
        "valid_format": 1.0,
        "penalty_share": 0.0,
        "success": 0.3,
        "mean_return": 2.0,
    }
    return Indicators(**{**values, **changes})


def test_never_any_good_is_red_after_a_while() -> None:
    hopeless = flat(in_group_std=0.01, valid_format=0.0, penalty_share=1.0, success=0.0)
    assert stop_iteration([hopeless] * 40) == 2 * BASELINE - 1 + PATIENCE - 1


def test_a_template_that_leads_nowhere_is_amber() -> None:
    run = [flat()] * 15 + [flat(in_group_std=0.3, entropy=0.12)] * 20
    assessment = assess(run, BASELINE, CollapseThresholds())
    assert assessment.level is Level.AMBER
    assert assessment.reason == (
        "success stays at 0.30 (baseline 0.30) while in-group std is 0.308 (baseline 1) and "
        "entropy is 0.124 (baseline 0.5)"
    )
    assert assessment.signs == (
        "success stays at 0.30 (baseline 0.30)",
        "in-group std is 0.308 (baseline 1)",
        "entropy is 0.124 (baseline 0.5)",
    )


def test_zero_std_and_no_progress_is_red() -> None:
    run = [flat()] * 15 + [flat(in_group_std=0.01, zero_std_fraction=1.0)] * 30
    assert assess(run, BASELINE, CollapseThresholds()).level is Level.RED


def test_a_rising_return_is_progress() -> None:
    run = [flat(success=0.0)] * 15 + [flat(success=0.0, in_group_std=0.01, mean_return=4.0)] * 30
    assert assess(run, BASELINE, CollapseThresholds()).level is Level.GREEN


def test_a_gradient_spike_alone_is_no_alarm_but_with_lost_success_it_is() -> None:
    calm = [flat(grad_norm=1.0)] * 15
    spiked = [flat(grad_norm=50.0)] * 10
    lone = assess(calm + spiked, BASELINE, CollapseThresholds())
    assert (lone.level, lone.reason) == (Level.GREEN, "")
    assert len(lone.signs) == 1
    assert "gradient norm" in lone.signs[0]
    fallen = [flat(grad_norm=50.0, success=0.1)] * 15
    assessment = assess(calm + fallen, BASELINE, CollapseThresholds())
    assert assessment.level is Level.RED
    assert "gradient norm" in assessment.reason


def test_ratios() -> None:
    run = [flat(grad_norm=2.0)] * 11
    assert assess(run, BASELINE, CollapseThresholds()).ratios == pytest.approx(
        {
            "in_group_std_ratio": 1.0,
            "entropy_ratio": 1.0,
            "grad_norm_ratio": 1.0,
            "response_length_ratio": 1.0,
            "valid_format_ratio": 1.0,
            "success_ratio": 1.0,
            "zero_std_fraction": 0.1,
            "penalty_share": 0.0,
            "entropy_burst": 1.0,
            "entropy_bursts": 0.0,
        }
    )
    assert assess(run[:5], BASELINE, CollapseThresholds()).ratios == {}


def test_bursts_of_entropy_are_logged_and_no_alarm() -> None:
    calm, high = flat(entropy=0.4), flat(entropy=0.9)
    run = [calm] * 10 + [high] * 2 + [calm] * 4 + [high] * 2
    found = assess(run, BASELINE, CollapseThresholds())
    assert found.level is Level.GREEN
    assert found.ratios["entropy_bursts"] == 2.0
    assert found.ratios["entropy_burst"] > 1.5
    assert assess(run[:10], BASELINE, CollapseThresholds()).ratios["entropy_bursts"] == 0.0
