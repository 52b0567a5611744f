"""Accumulate the gradient of one optimizer batch, micro-batch by micro-batch.

``backward`` adds the gradient of a loss that is this rank's share of a sum over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ragen_pl.algorithm import Algorithm
from ragen_pl.coefficients import Coefficients
from ragen_pl.distributed import all_reduce_sum, largest
from ragen_pl.estimators import CriticConfig
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.objective import (
    POLICY_METRICS,
    Scores,
    Totals,
    policy_objective,
    value_objective,
)
from ragen_pl.ops.diagnostics import explained_variance
from ragen_pl.ops.importance import importance_ratio
from ragen_pl.ops.masked import masked_sum
from ragen_pl.scoring import Scorer, score_values
from ragen_pl.types import Demonstration, TrainingBatch

Backward = Callable[[Tensor], None]
REDUCTIONS = {
    "train/updates": "sum",
    "train/update_tokens": "sum",
    "train/sampler_ratio_max": "max",
}
"""What becomes of a metric over an iteration's updates, where the others are averaged."""


def imitation_gradient(
    batch: Demonstration, policy: Policy, scorer: Scorer, backward: Backward
) -> dict[str, Tensor]:
    """Lower the negative log-likelihood of the expert's tokens; return what to log."""
    rollout = batch.rollout
    tokens = all_reduce_sum(rollout.loss_mask.sum().float()).clamp(min=1)
    total = torch.zeros(())
    for _, part in scorer.cut(rollout, rollout.policy_weights > 0):
        log_probs, _ = scorer.score(policy, part)
        loss = -masked_sum(log_probs, part.loss_mask) / tokens
        backward(loss)
        total += loss.detach().cpu()
    return {"train/imitation_loss": all_reduce_sum(total)}


def policy_gradient(
    batch: TrainingBatch,
    policy: Policy,
    reference: Policy | None,
    scorer: Scorer,
    algorithm: Algorithm,
    coefficients: Coefficients,
    backward: Backward,
) -> dict[str, Tensor]:
    """Lower the policy's loss on the kept trajectories; return what to log.

    Args:
        reference: Of the KL term in the loss; None without one.
    """
    rollout = batch.rollout
    totals = Totals.of(rollout, algorithm.aggregation)
    sums = torch.zeros(len(POLICY_METRICS))
    for rows, part in scorer.cut(rollout, rollout.policy_weights > 0):
        length = part.input_ids.shape[1]
        ref_log_probs = None
        if reference is not None:
            with torch.no_grad():
                ref_log_probs, _ = scorer.score(reference, part)
        loss, terms = policy_objective(
            Scores(*scorer.score(policy, part), ref_log_probs),
            batch.old_log_probs[rows, :length],
            batch.advantages[rows, :length],
            part,
            algorithm,
            coefficients,
            totals,
        )
        backward(loss)
        sums += terms
    means = zip(POLICY_METRICS, all_reduce_sum(sums), strict=True)
    return {
        **{f"train/{name}": value for name, value in means},
        **sampler_metrics(batch, totals.tokens, algorithm.sampler_ratio_cap),
        "train/updates": torch.ones(()),
        "train/update_tokens": totals.tokens,
    }


def sampler_metrics(batch: TrainingBatch, tokens: Tensor, cap: float | None) -> dict[str, Tensor]:
    """Compare the trainer's probabilities with the sampler's, over all ranks.

    Args:
        tokens: Of the kept trajectories, on all ranks.
        cap: Of the correction; None without one.
    """
    rollout = batch.rollout
    mask = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    ratio = importance_ratio(batch.old_log_probs, rollout.sampled_log_probs)[mask]
    furthest = largest(float(ratio.max()) if ratio.numel() else 0.0)
    metrics = {"train/sampler_ratio_max": torch.tensor(furthest)}
    if cap is not None:
        metrics["train/sampler_ratio_capped"] = all_reduce_sum((ratio > cap).sum()) / tokens
    return metrics


def value_gradient(
    batch: TrainingBatch, critic: Critic, config: CriticConfig, scorer: Scorer, backward: Backward
) -> dict[str, Tensor]:
    """Lower the critic's loss on the trajectories it learns from; return what to log."""
    rollout, chosen = batch.rollout, config.rows(batch.rollout)
    mask = rollout.loss_mask & chosen[:, None]
    tokens = all_reduce_sum(mask.sum().float()).clamp(min=1)
    total = torch.zeros(())
    for rows, part in scorer.cut(rollout, chosen):
        length = part.input_ids.shape[1]
        loss = value_objective(
            score_values(critic, part),
            batch.values[rows, :length],
            batch.returns[rows, :length],
            part,
            config,
            tokens,
        )
        backward(config.value_coef * loss)
        total += loss.detach().cpu()
    explained = explained_variance(batch.values, batch.returns, mask, all_reduce_sum)
    return {"train/value_loss": all_reduce_sum(total), "train/explained_variance": explained}
