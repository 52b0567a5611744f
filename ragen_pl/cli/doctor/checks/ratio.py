"""An update with learning rate 0: the policy must stay the one that sampled."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.cli.doctor.recomputed import Recomputed, recompute
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.training.update import Update
from ragen_pl.types import TrainingBatch

_LARGEST = 1e-3
"""Largest deviation of a ratio from 1 after a step of size 0."""
_LARGEST_KL = 1e-2
"""Largest KL between the passes with and without gradients, in bfloat16."""


def check_ratio(subject: ExaminedRun) -> Iterator[Finding]:
    """Take a step with learning rate 0 and compare every token's log-prob before and after."""
    before = recompute(subject)
    if before is None:
        yield warning("nothing was sampled", "mend what failed above")
        return
    clipped, kl = _step_of_size_zero(subject, before)
    after = recompute(subject)
    assert after is not None
    mask = before.rollout.loss_mask
    ratios = (after.log_probs - before.log_probs).exp()[mask]
    deviation = float((ratios - 1).abs().max())
    if not (deviation <= _LARGEST and kl <= _LARGEST_KL and clipped == 0.0):
        yield failure(
            f"after a step with learning rate 0 ratios differ from 1 by up to {deviation:.2g} (KL "
            f"{kl:.2g}, {clipped:.0%} clipped): the forward pass is not repeatable",
            "turn off dropout and whatever else is random or stateful in the model",
        )
        return
    yield ok(f"a step with learning rate 0 leaves all {int(mask.sum())} ratios at 1")


def _step_of_size_zero(subject: ExaminedRun, before: Recomputed) -> tuple[float, float]:
    """Take the step; return the share of clipped tokens and the KL of its forward pass."""
    model, algorithm = before.policy.model, subject.parts.model.algorithm
    rollout = before.rollout
    signs = torch.where(rollout.trajectory_ids % 2 == 0, 1.0, -1.0)
    zeros = torch.zeros_like(rollout.rewards)
    batch = TrainingBatch(
        rollout, before.log_probs, zeros, signs[:, None] * rollout.loss_mask, zeros
    ).to(model.device)
    update = Update(
        policy=before.policy,
        value_function=None,
        reference=None,
        passes=before.passes,
        algorithm=algorithm,
        coefficients=Coefficients(algorithm),
        backward=lambda loss: loss.backward(),  # type: ignore[no-untyped-call]
    )
    trained = [weight for weight in before.policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=0.0)
    with subject.policy.autocast():
        metrics = update.backward_policy(batch)
    optimizer.step()
    optimizer.zero_grad()
    return float(metrics["train/clip_fraction"]), float(metrics["train/approx_kl"])
