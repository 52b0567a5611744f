"""Put the terms of the loss together for one micro-batch: what StarPO minimises.

Every term is a sum divided by a count over the *whole* optimizer batch on all ranks, so neither
micro-batches nor ranks change the update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.algorithm import Algorithm
from ragen_pl.coefficients import Coefficients, FixedCoefficients
from ragen_pl.distributed import all_reduce_sum
from ragen_pl.estimators import CriticConfig
from ragen_pl.estimators.base import kept_tokens
from ragen_pl.models.policy import Scores
from ragen_pl.ops import losses
from ragen_pl.ops.aggregation import Aggregation, aggregate, count
from ragen_pl.ops.importance import truncated_importance_weights
from ragen_pl.ops.kl import kl_estimate
from ragen_pl.ops.masked import masked_sum
from ragen_pl.types import RolloutBatch

POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")


@dataclass(frozen=True, slots=True)
class Totals:
    """Count what the policy learns from in the whole optimizer batch, on all ranks."""

    counted: Tensor
    """Loss tokens of the kept trajectories."""
    tokens: Tensor
    """The same, or 1 where there are none: what divides metrics."""
    divisor: Tensor
    """What divides the loss, by the kind of aggregation."""

    @classmethod
    def of(cls, rollout: RolloutBatch, aggregation: Aggregation) -> Totals:
        """Count this rank's share and add the others'; every rank must call it."""
        mask = kept_tokens(rollout)
        own = torch.stack([mask.sum().float(), count(mask, aggregation)])
        found = all_reduce_sum(own)
        return cls(found[0], *found.clamp(min=1))


def estimate(
    rollout: RolloutBatch, values: Tensor, algorithm: Algorithm, kl_penalty: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets, each (B, T).

    What is whitened is so over the sampled tokens of all kept trajectories of the collection, on
    all ranks; the critic's targets cover every trajectory, whose values must be known where it
    learns from them.

    Args:
        rollout: The whole collection of this rank.
        values: (B, T); zeros without a critic.
        algorithm: Holds the estimator.
        kl_penalty: (B, T), taken off the rewards token by token, wherever those are credited.
    """
    rewards = algorithm.advantage.credit(rollout)
    if kl_penalty is not None:
        rewards = rewards - kl_penalty
    return algorithm.advantage(rollout, rewards, values)


def policy_objective(
    scores: Scores,
    ref_log_probs: Tensor | None,
    old_log_probs: Tensor,
    advantage: Tensor,
    part: RolloutBatch,
    algorithm: Algorithm,
    coefficients: Coefficients | FixedCoefficients,
    totals: Totals,
) -> tuple[Tensor, Tensor]:
    """Return the policy's loss and this micro-batch's share of ``POLICY_METRICS``.

    The surrogate, weighted by trajectory (and by token where the sampler is corrected for), less
    the entropy bonus, plus KL where it is asked for (RAGEN §3, §4.3). The metrics other than the
    loss are means over tokens.

    Args:
        scores: What the policy says of the micro-batch.
        ref_log_probs: (B, T), of the policy RL started from; None without a KL term in the loss.
        old_log_probs: (B, T).
        advantage: (B, T).
        part: The micro-batch; rows of weight 0 do not count.
        algorithm: Holds the loss and how it is aggregated.
        coefficients: Of the entropy bonus and the KL term, now.
        totals: Of the whole optimizer batch.
    """
    mask, log_probs = kept_tokens(part), scores.log_probs

    def mean(values: Tensor, weights: Tensor | None = None) -> Tensor:
        return aggregate(values, mask, algorithm.aggregation, totals.divisor, weights)

    terms = algorithm.policy_loss(log_probs, old_log_probs, advantage, mask)
    surrogate, cap = terms.loss, algorithm.sampler_ratio_cap
    if cap is not None:
        sampled = part.sampled_log_probs
        surrogate = surrogate * truncated_importance_weights(old_log_probs, sampled, cap)
    policy_loss = mean(surrogate, part.policy_weights)
    total = policy_loss - coefficients.entropy * mean(scores.entropy)
    kl = torch.zeros_like(log_probs)
    if ref_log_probs is not None:
        assert algorithm.kl is not None
        kl = kl_estimate(log_probs, ref_log_probs, algorithm.kl.estimator)
        total = total + coefficients.kl * mean(kl)
    with torch.no_grad():
        moved = kl_estimate(old_log_probs, log_probs, "k3")
        gap = (old_log_probs - part.sampled_log_probs).abs()
        per_token = (scores.entropy, kl, terms.clipped.to(log_probs.dtype), moved, gap)
        means = [masked_sum(each, mask) / totals.tokens for each in per_token]
        return total, torch.stack([policy_loss, *means]).float().cpu()


def value_objective(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    part: RolloutBatch,
    config: CriticConfig,
    num_tokens: Tensor,
) -> Tensor:
    """Return the critic's loss, clipped, over those rows of a micro-batch that it learns from.

    A mean over tokens, whatever the policy's aggregation: a value is a prediction at a token.
    """
    loss = losses.clipped_value_loss(values, old_values, returns, config.value_clip)
    return masked_sum(loss, config.tokens(part)) / num_tokens
