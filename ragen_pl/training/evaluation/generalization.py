"""Comparison of success in training with success on starts that no run trains on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from ragen_pl.training.evaluation.results import PolicyResult

_LAST, _LEAST = 10, 5
"""Iterations whose training rollouts are averaged, and the fewest that tell anything."""
_STUDENT_95 = 2.776445105
"""The 97.5 % point of Student's distribution with four degrees of freedom, those of the fewest
iterations; more have a smaller one."""


def training_gap(history: Sequence[Mapping[str, Any]], final: PolicyResult) -> str | None:
    """Say that a policy is better on its training starts than on an evaluation set.

    Both have an interval, and these must not overlap. A curriculum, which chooses the training
    starts, explains a difference: then nothing is said.

    Args:
        history: The metrics of each iteration so far, by name.
        final: The final policy's result on an evaluation set of the task that it is trained on.
    """
    rows = [row for row in history if "rollout/success" in row]
    # It is measured only where a curriculum chooses among starts.
    if any("rollout/success_uniform" in row for row in rows):
        return None
    rates = [float(row["rollout/success"]) for row in rows[-_LAST:]]
    if len(rates) < _LEAST:
        return None
    mean = fmean(rates)
    spread = _STUDENT_95 * stdev(rates) / math.sqrt(len(rates))
    if mean - spread <= final.result.high:
        return None
    return (
        f"success was {mean:.1%} ± {spread:.1%} on the training rollouts of the last {len(rates)} "
        f"iterations, but is {final.result.success:.1%} on {final.eval_set} at "
        f"T={final.temperature:g}: unless starts there are harder, the policy knows its training "
        "starts by heart; train on more distinct ones, or for fewer iterations"
    )
