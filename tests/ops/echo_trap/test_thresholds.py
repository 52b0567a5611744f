"""No threshold of the Echo Trap's rules is ignored: each one, moved, changes a judgement.

The histories are healthy at first and then go from there to an ailment step by step, so that every
indicator passes all its values. Only levels are compared: a reason may name a number for show.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from ragen_pl.ops.echo_trap.assess import Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseRules
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
OTHER = {
    "smoothing": 0.5,
    "success_fell": 0.95,
    "success_collapsed": 0.7,
    "success_gone": 0.45,
    "solved": 0.4,
    "spread_fell": 0.9,
    "spread_dead": 0.4,
    "zero_std_fraction": 0.1,
    "entropy_fell": 0.9,
    "entropy_rose": 5.0,
    "format_broke": 0.5,
    "gradient_spiked": 30.0,
    "floor_share": 0.5,
    "early_smoothing": 0.9,
    "early_signs": 3,
    "early_patience": 9,
    "early_signs_at_once": 2,
    "format_slipped": 0.6,
    "responses_grew": 2.5,
    "entropy_climbed": 4.0,
    "success_slipped": 0.5,
    "step_too_long": 0.05,
    "step_is_short": 0.002,
}


def course(ailment: dict[str, float], steps: int = 16) -> list[Indicators]:
    """Be healthy for a while, then go to the ailment step by step and stay there."""
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
    rules = CollapseRules(**arguments)
    return {
        name: [assess(history[:n], BASELINE, rules).level for n in range(1, len(history) + 1)]
        for name, history in HISTORIES.items()
    }


PROOF = KeyProof(
    CollapseRules, levels, others={f"CollapseRules.{key}": (v,) for key, v in OTHER.items()}
)


def test_every_ailment_is_judged_and_no_health() -> None:
    for name, found in PROOF.before(0).items():
        assert not any(found[: BASELINE + 5]), name
        assert any(level > Level.GREEN for level in found), name


def test_the_same_rules_twice_judge_the_same() -> None:
    PROOF.check_reproducible()


@pytest.mark.parametrize("path", PROOF.paths(), ids=spelled)
def test_a_threshold_acts(path: tuple[str, ...]) -> None:
    PROOF.check(path)
