"""Put the terms of the loss together for one micro-batch: what StarPO minimises.

Every term is a sum over tokens divided by the number of loss tokens of the *whole* optimizer batch
on all ranks, so neither micro-batches nor ranks change the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.algorithm import Algorithm
from ragen_pl.distributed import all_reduce_sum
from ragen_pl.ops import advantages, diagnostics, losses
from ragen_pl.ops.masked import masked_mean, masked_sum, whiten
from ragen_pl.types import RolloutBatch

POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")


@dataclass(frozen=True, slots=True)
class Scores:
    """Hold what the networks say of one micro-batch, each (B, T) and zero off the loss mask."""

    log_probs: Tensor
    entropy: Tensor
    ref_log_probs: Tensor | None
    """Of the policy RL started from, where a KL term is asked for."""


def estimate(rollout: RolloutBatch, values: Tensor, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets, each (B, T).

    With a critic, advantages are whitened over the sampled tokens of all kept trajectories of the
    collection, on all ranks; its targets cover every trajectory.

    Args:
        rollout: The whole collection of this rank.
        values: (B, T); zeros without a critic.
        algorithm: Names the estimator and its discounts.
    """
    mask = rollout.loss_mask
    rewards = rollout.rewards * algorithm.reward_scale
    advantage, returns = advantages.gae(
        rewards, values, mask, algorithm.gamma, algorithm.gae_lambda
    )
    if algorithm.uses_critic:
        kept = mask & (rollout.policy_weights > 0)[:, None]
        return whiten(advantage, kept, all_reduce_sum), returns
    divide = algorithm.advantage == "grpo"
    return advantages.grpo(rewards, mask, rollout.group_ids, divide_by_std=divide), returns


def policy_objective(
    scores: Scores,
    old_log_probs: Tensor,
    advantage: Tensor,
    part: RolloutBatch,
    algorithm: Algorithm,
    num_tokens: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the policy's loss and this micro-batch's share of ``POLICY_METRICS``.

    Clipped surrogate, weighted by trajectory, less the entropy bonus, plus KL where it is asked
    for (RAGEN §3, §4.3).

    Args:
        scores: What the networks say of the micro-batch.
        old_log_probs: (B, T).
        advantage: (B, T).
        part: The micro-batch.
        algorithm: Clip bounds and coefficients.
        num_tokens: Loss tokens of the kept trajectories of the whole optimizer batch.
    """
    mask, log_probs = part.loss_mask, scores.log_probs
    bounds = {"clip_low": algorithm.clip_low, "clip_high": algorithm.clip_high}
    surrogate = losses.clipped_policy_loss(
        log_probs, old_log_probs, advantage, dual_clip=algorithm.dual_clip, **bounds
    )
    policy_loss = masked_sum(surrogate * part.policy_weights[:, None], mask) / num_tokens
    entropy = masked_sum(scores.entropy, mask) / num_tokens
    total = policy_loss - algorithm.entropy_coef * entropy
    kl = torch.zeros_like(total)
    if scores.ref_log_probs is not None:
        kl = masked_sum(losses.kl_estimate(log_probs, scores.ref_log_probs), mask) / num_tokens
        total = total + algorithm.kl_coef * kl
    with torch.no_grad():
        share = mask.sum() / num_tokens
        clipped = diagnostics.clip_fraction(log_probs, old_log_probs, mask, **bounds)
        moved = diagnostics.approx_kl(log_probs, old_log_probs, mask)
        gap = masked_mean((old_log_probs - part.sampled_log_probs).abs(), mask)
        terms = [policy_loss, entropy, kl, share * clipped, share * moved, share * gap]
        return total, torch.stack(terms).float().cpu()


def value_objective(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    part: RolloutBatch,
    algorithm: Algorithm,
    num_tokens: Tensor,
) -> Tensor:
    """Return the critic's loss: clipped, over every trajectory, dropped ones included."""
    loss = losses.clipped_value_loss(values, old_values, returns, algorithm.value_clip)
    return masked_sum(loss, part.loss_mask) / num_tokens
