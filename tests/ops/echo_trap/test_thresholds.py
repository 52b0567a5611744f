"""No threshold of the Echo Trap alarm is ignored: each key and constant, changed, changes a level.

The histories are healthy at first and then move to an ailment step by step, so that every indicator
passes all its values. Only levels are compared: a reason may merely name a number.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from ragen_pl.ops.echo_trap import thresholds as limits
from ragen_pl.ops.echo_trap.assess import Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds
from tests.support.config_key_effects import KeyProof, Outcome, spelled

BASELINE = 5
HEALTHY = Indicators(
    in_group_std=2.0,
    zero_std_fraction=0.0,
    entropy=0.4,
    valid_format=1.0,
    penalty_share=0.0,
    success=0.5,
    mean_return=3.0,
    grad_norm=1.0,
    response_length=10.0,
)
AILMENTS: dict[str, dict[str, float]] = {
    "success is lost": {"success": 0.0},
    "success is lost with the spread": {"success": 0.0, "in_group_std": 0.0},
    "success is lost with the groups' spread": {"success": 0.1, "zero_std_fraction": 1.0},
    "success is lost with the entropy": {"success": 0.1, "entropy": 0.0},
    "success is lost in noise": {"success": 0.2, "entropy": 1.2},
    "success is lost with the format": {"success": 0.2, "valid_format": 0.7},
    "success is lost by wild steps": {"success": 0.1, "grad_norm": 50.0},
    "variety is lost": {"in_group_std": 0.0, "entropy": 0.0},
    "nothing is understood": {"penalty_share": 1.0},
    "the format slips and responses grow": {"valid_format": 0.5, "response_length": 30.0},
    "entropy climbs and responses grow": {"entropy": 2.0, "response_length": 30.0},
    "steps grow wild and responses longer": {"grad_norm": 50.0, "response_length": 30.0},
    "success slips and responses grow": {"success": 0.2, "response_length": 30.0},
    "steps grow long": {"approx_kl": 0.04},
    "the format slips before success, at middling steps": {
        "approx_kl": 0.01,
        "valid_format": 0.5,
        "response_length": 30.0,
        "success": 0.2,
    },
    "three signs": {"valid_format": 0.5, "response_length": 30.0, "entropy": 2.0},
}
OTHER_KEYS = {
    "early_signs": 3,
    "early_patience": 9,
    "solved_success": 0.4,
    "max_approx_kl": 0.05,
}
OTHER_CONSTANTS = {
    "SMOOTHING": 0.5,
    "EARLY_SMOOTHING": 0.9,
    "SUCCESS_AMBER": 0.95,
    "SUCCESS_RED_WITH_SIGN": 0.7,
    "SUCCESS_RED": 0.45,
    "STD_RED": 0.4,
    "PENALTY_SHARE_RED": 0.5,
    "STD_SIGN": 0.9,
    "ZERO_STD_SIGN": 0.1,
    "LOW_ENTROPY_SIGN": 0.9,
    "HIGH_ENTROPY_SIGN": 5.0,
    "FORMAT_SIGN": 0.5,
    "GRAD_NORM_SIGN": 30.0,
    "FORMAT_EARLY_SIGN": 0.6,
    "RESPONSE_LENGTH_EARLY_SIGN": 2.5,
    "ENTROPY_RISE_EARLY_SIGN": 4.0,
    "SUCCESS_EARLY_SIGN": 0.5,
    "LOW_APPROX_KL": 0.002,
}


def course(ailment: dict[str, float], steps: int = 16) -> list[Indicators]:
    """Return a history that is healthy for a while, then moves to the ailment step by step."""
    history = [HEALTHY] * (BASELINE + 5)
    for step in range(1, steps + 5):
        ill = min(1.0, step / steps)
        usual = asdict(HEALTHY) | {"approx_kl": 0.001}  # unknown until it begins to grow
        healthy = {name: usual[name] for name in ailment}
        now = {name: value + (ailment[name] - value) * ill for name, value in healthy.items()}
        history.append(replace(HEALTHY, **now))
    return history


HISTORIES = {name: course(ailment) for name, ailment in AILMENTS.items()}


def levels(arguments: dict[str, Any]) -> Outcome:
    thresholds = CollapseThresholds(**arguments)
    return {
        name: [assess(history[:n], BASELINE, thresholds).level for n in range(1, len(history) + 1)]
        for name, history in HISTORIES.items()
    }


PROOF = KeyProof(
    CollapseThresholds,
    levels,
    others={f"CollapseThresholds.{key}": (value,) for key, value in OTHER_KEYS.items()},
)


def test_every_ailment_raises_an_alarm_and_health_none() -> None:
    for name, found in PROOF.before(0).items():
        assert not any(found[: BASELINE + 5]), name
        assert any(level > Level.GREEN for level in found), name


def test_equal_thresholds_give_equal_levels() -> None:
    PROOF.check_reproducible()


@pytest.mark.parametrize("path", PROOF.paths(), ids=spelled)
def test_a_key_acts(path: tuple[str, ...]) -> None:
    PROOF.check(path)


def test_every_constant_is_tested() -> None:
    assert {name for name in vars(limits) if name.isupper()} == OTHER_CONSTANTS.keys()


@pytest.mark.parametrize("name", OTHER_CONSTANTS)
def test_a_constant_acts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = levels({})
    monkeypatch.setattr(limits, name, OTHER_CONSTANTS[name])
    assert levels({}) != before
