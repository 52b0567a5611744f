"""A large approximate KL is amber before any symptom; a small one excuses a lower format rate."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from ragen_pl.ops.echo_trap.assess import Level
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from tests.ops.echo_trap.histories import first, look, verdicts


def stepping(run: list[Indicators], kl: float | None) -> list[Indicators]:
    """Set the updates' approximate KL, from the third iteration on."""
    return [replace(each, approx_kl=kl if t > 1 else None) for t, each in enumerate(run)]


def test_long_steps_forewarn_of_a_fall_that_nothing_else_shows() -> None:
    rng = random.Random(0)
    sound = [look(rng) for _ in range(12)]
    (*_, verdict) = verdicts(stepping(sound, 0.05))
    assert (verdict.level, verdict.forewarns) == (Level.AMBER, True)
    assert "approximate KL of 0.05 nats a token (max_approx_kl is 0.015)" in verdict.reason
    assert verdict.ratios["approx_kl"] == pytest.approx(0.05)
    assert first(verdicts(stepping(sound, 0.05)), Level.AMBER) == 3  # with the second it knows
    for calm in (0.01, None):
        assert first(verdicts(stepping(sound, calm)), Level.AMBER) > 30
    assert "approx_kl" not in verdicts(stepping(sound, None))[-1].ratios


def test_long_steps_can_be_switched_off_and_do_not_count_as_short() -> None:
    rng = random.Random(0)
    usual, slips = [look(rng) for _ in range(20)], {"valid_format": 0.6, "response_length": 30.0}
    off = CollapseThresholds(max_approx_kl=math.inf)
    assert first(verdicts(stepping(usual, 0.1), off), Level.AMBER) > 30
    slip = look(rng, **slips, entropy=3.0)
    assert first(verdicts(stepping([*usual, slip], 0.1), off), Level.AMBER) == 20


def test_one_long_step_is_no_habit() -> None:
    rng = random.Random(0)
    history = stepping([look(rng) for _ in range(20)], 0.003)
    history[12] = replace(history[12], approx_kl=0.3)
    assert first(verdicts(history), Level.AMBER) > 30


def test_a_harm_is_not_put_down_to_long_steps() -> None:
    """What is wrong with the policy itself is said before what threatens it."""
    rng = random.Random(0)
    slip = look(rng, valid_format=0.6, response_length=30.0)
    (*_, verdict) = verdicts(stepping([*[look(rng) for _ in range(15)], slip, slip], 0.05))
    assert verdict.level is Level.AMBER
    assert not verdict.forewarns
    assert verdict.reason.startswith("early signs")


def test_a_policy_of_short_steps_may_slip_as_long_as_it_succeeds() -> None:
    rng = random.Random(0)
    usual = [look(rng) for _ in range(20)]
    slips = {"valid_format": 0.6, "response_length": 30.0, "entropy": 3.0}
    slip, fall = look(rng, **slips), look(rng, **slips, success=0.1)
    assert first(verdicts([*usual, slip, slip]), Level.AMBER) == 20
    assert first(verdicts(stepping([*usual, slip, slip, slip], 0.05)), Level.AMBER) < 20
    assert first(verdicts(stepping([*usual, slip, slip, slip], 0.003)), Level.AMBER) > 30
    assert first(verdicts(stepping([*usual, fall, fall, fall], 0.003)), Level.AMBER) in (21, 22)
