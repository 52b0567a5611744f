"""A gap between training and evaluation is told unless intervals or a curriculum explain it."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_pl.training.evaluation.generalization import training_gap
from ragen_pl.training.evaluation.results import PolicyResult, summarize
from tests.support.doubles import make_group


def final(solved: int, count: int = 100) -> PolicyResult:
    groups = [make_group([float(n < solved)], group_id=n, seed=n) for n in range(count)]
    return PolicyResult("final", "default", 1.0, summarize(groups), iterations=20)


def history(*rates: float, **more: float) -> list[dict[str, Any]]:
    warm = {"iteration": 1, "phase": "warm_start"}
    return [warm, *({"rollout/success": rate, **more} for rate in rates)]


def test_success_on_training_starts_alone_is_told() -> None:
    """Student's interval of 0.8, 0.9 ten times over is 0.85 ± 2.776 · 0.0527 / √10."""
    told = training_gap(history(0.1, 0.2, *[0.8, 0.9] * 5), final(20))
    assert told == (
        "success was 85.0% ± 4.6% on the training rollouts of the last 10 iterations, but is 20.0% "
        "on default at T=1: unless starts there are harder, the policy knows its training starts "
        "by heart; train on more distinct ones, or for fewer iterations"
    )


@pytest.mark.parametrize(
    ("rows", "solved"),
    [
        (history(*[0.8, 0.9] * 5), 85),
        (history(*[0.8, 0.9] * 5), 77),  # whose interval reaches to 0.842
        (history(*[0.1, 0.9] * 5), 40),  # rates that vary too much
        (history(0.8, 0.9, 0.8, 0.9), 20),
        (history(*[0.8, 0.9] * 5, **{"rollout/success_uniform": 0.5}), 20),
        ([], 20),
    ],
    ids=["equal", "within the interval", "noisy", "few iterations", "curriculum", "no RL"],
)
def test_what_intervals_or_a_curriculum_explain_is_not_told(
    rows: list[dict[str, Any]], solved: int
) -> None:
    assert training_gap(rows, final(solved)) is None
