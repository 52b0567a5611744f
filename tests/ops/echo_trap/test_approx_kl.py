"""A large approximate KL is amber before any symptom; a small one excuses a lower format rate."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from ragen_pl.ops.echo_trap.assess import Level
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from tests.ops.echo_trap.histories import assessments, first, look


def with_kl(run: list[Indicators], kl: float | None) -> list[Indicators]:
    """Set the updates' approximate KL, from the third iteration on."""
    return [replace(each, approx_kl=kl if t > 1 else None) for t, each in enumerate(run)]


def of_one_update(run: list[Indicators]) -> list[Indicators]:
    """Move the approximate KL to where it is known if an iteration makes one update."""
    return [replace(each, approx_kl=None, update_kl=each.approx_kl) for each in run]


def test_the_kl_of_a_single_update_counts_as_that_of_several() -> None:
    rng = random.Random(0)
    sound, slip = [look(rng) for _ in range(20)], look(rng, valid_format=0.6, response_length=30.0)
    for kl in (0.003, 0.05):
        for history in (sound, [*sound, slip, slip, slip]):
            several = with_kl(history, kl)
            for one, other in zip(
                assessments(of_one_update(several)), assessments(several), strict=True
            ):
                assert (one.level, one.forewarns) == (other.level, other.forewarns)
    (*_, found) = assessments(of_one_update(with_kl(sound, 0.05)))
    assert "an update changes the policy by a KL of 0.05 nats a token" in found.reason
    assert found.ratios["update_kl"] == pytest.approx(0.05)
    assert "approx_kl" not in found.ratios


def test_a_large_kl_warns_of_a_fall_without_other_signs() -> None:
    rng = random.Random(0)
    sound = [look(rng) for _ in range(12)]
    (*_, assessment) = assessments(with_kl(sound, 0.05))
    assert (assessment.level, assessment.forewarns) == (Level.AMBER, True)
    assert "approximate KL of 0.05 nats a token (max_approx_kl is 0.015)" in assessment.reason
    assert assessment.ratios["approx_kl"] == pytest.approx(0.05)
    assert first(assessments(with_kl(sound, 0.05)), Level.AMBER) == 3  # with the second it knows
    for calm in (0.01, None):
        assert first(assessments(with_kl(sound, calm)), Level.AMBER) > 30
    assert "approx_kl" not in assessments(with_kl(sound, None))[-1].ratios


def test_the_kl_warning_can_be_disabled_and_a_large_kl_is_never_low() -> None:
    rng = random.Random(0)
    usual, slips = [look(rng) for _ in range(20)], {"valid_format": 0.6, "response_length": 30.0}
    off = CollapseThresholds(max_approx_kl=math.inf)
    assert first(assessments(with_kl(usual, 0.1), off), Level.AMBER) > 30
    slip = look(rng, **slips, entropy=3.0)
    assert first(assessments(with_kl([*usual, slip], 0.1), off), Level.AMBER) == 20


def test_a_single_large_kl_is_no_alarm() -> None:
    rng = random.Random(0)
    history = with_kl([look(rng) for _ in range(20)], 0.003)
    history[12] = replace(history[12], approx_kl=0.3)
    assert first(assessments(history), Level.AMBER) > 30


def test_a_sign_takes_precedence_over_a_large_kl() -> None:
    """A finding about the policy itself is reported rather than a warning."""
    rng = random.Random(0)
    slip = look(rng, valid_format=0.6, response_length=30.0)
    (*_, assessment) = assessments(with_kl([*[look(rng) for _ in range(15)], slip, slip], 0.05))
    assert assessment.level is Level.AMBER
    assert not assessment.forewarns
    assert assessment.reason.startswith("early signs")
    assert assessment.reason == f"early signs: {' and '.join(assessment.signs)}"


def test_with_a_low_kl_early_signs_need_a_fall_of_success() -> None:
    rng = random.Random(0)
    usual = [look(rng) for _ in range(20)]
    slips = {"valid_format": 0.6, "response_length": 30.0, "entropy": 3.0}
    slip, fall = look(rng, **slips), look(rng, **slips, success=0.1)
    assert first(assessments([*usual, slip, slip]), Level.AMBER) == 20
    assert first(assessments(with_kl([*usual, slip, slip, slip], 0.05)), Level.AMBER) < 20
    assert first(assessments(with_kl([*usual, slip, slip, slip], 0.003)), Level.AMBER) > 30
    assert first(assessments(with_kl([*usual, fall, fall, fall], 0.003)), Level.AMBER) in (21, 22)
