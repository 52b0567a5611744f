"""Accumulate the gradient of one optimizer batch, micro-batch by micro-batch.

``backward`` adds the gradient of a loss that is this rank's share of a sum over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from ragen_pl.algorithms.coefficients import Coefficients, FixedCoefficients
from ragen_pl.algorithms.config import Algorithm, Optimization
from ragen_pl.algorithms.estimators import CriticConfig
from ragen_pl.algorithms.estimators.base import kept_tokens
from ragen_pl.distributed.collectives import all_reduce_max, all_reduce_sum
from ragen_pl.distributed.sharding import full_tensor
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.ops import losses
from ragen_pl.ops.losses import (
    Aggregation,
    aggregate,
    count,
    importance_ratio,
    kl_estimate,
    truncated_importance_weights,
)
from ragen_pl.ops.masked import explained_variance, masked_sum
from ragen_pl.training.scoring import LogProbPass, ValueFunction, score_values
from ragen_pl.types import Demonstration, RolloutBatch, TrainingBatch

Backward = Callable[[Tensor], None]
REDUCTIONS = {
    "train/updates": "sum",
    "train/update_tokens": "sum",
    "train/sampler_ratio_max": "max",
}
"""What becomes of a metric over an iteration's updates, where the others are averaged."""


def sft_gradient(
    batch: Demonstration, policy: Policy, scorer: LogProbPass, backward: Backward
) -> dict[str, Tensor]:
    """Lower the negative log-likelihood of the expert's tokens; return what to log."""
    rollout = batch.rollout
    tokens = all_reduce_sum(rollout.loss_mask.sum().float()).clamp(min=1)
    total = torch.zeros(())
    for _, part in scorer.cut(rollout, rollout.policy_weights > 0):
        loss = -masked_sum(scorer.score(policy, part).log_probs, part.loss_mask) / tokens
        backward(loss)
        total += loss.detach().cpu()
    return {"train/imitation_loss": all_reduce_sum(total)}


def policy_gradient(
    batch: TrainingBatch,
    policy: Policy,
    reference: Policy | None,
    scorer: LogProbPass,
    algorithm: Algorithm,
    coefficients: Coefficients,
    backward: Backward,
    on_policy: bool = False,
) -> dict[str, Tensor]:
    """Lower the policy's loss on the kept trajectories; return what to log.

    A value head learns in the same pass, on those that its loss is taken over. Where no trajectory
    was kept on any rank there is no update to be measured, and nothing but its counts is logged.

    Args:
        reference: Of the KL term in the loss; None without one.
        on_policy: Whether the weights are those that collected: the old log-probs are their own.
    """
    rollout, chosen = batch.rollout, batch.rollout.policy_weights > 0
    totals = LossDenominators.of(rollout, algorithm.aggregation)
    sums, old = torch.zeros(len(POLICY_METRICS)), batch.old_log_probs.clone()
    critic = algorithm.critic if policy.value_head is not None else None
    values = None
    if critic is not None:
        values, chosen = ValueLoss(batch, critic), chosen | critic.rows(rollout)
    for rows, part in scorer.cut(rollout, chosen):
        length = part.input_ids.shape[1]
        scores = scorer.score(policy, part)
        if on_policy:
            old[rows, :length] = scores.log_probs.detach().to(old)
        loss, terms = policy_objective(
            scores,
            None if reference is None else frozen_log_probs(reference, scorer, part),
            old[rows, :length],
            batch.advantages[rows, :length],
            part,
            algorithm,
            coefficients,
            totals,
        )
        if values is not None:
            assert scores.values is not None
            loss = loss + values.add(scores.values, rows, part)
        backward(loss)
        sums += terms
    is_update = bool(totals.counted > 0)  # alike on all ranks
    metrics = {} if values is None else values.metrics()
    metrics["train/updates"] = torch.tensor(float(is_update))
    metrics["train/update_tokens"] = totals.counted
    if is_update:
        metrics |= policy_metrics(sums)
        metrics |= sampler_metrics(rollout, old, totals.tokens, algorithm.sampler_ratio_cap)
    return metrics


def policy_metrics(sums: Tensor) -> dict[str, Tensor]:
    """Return the means of an update, over all ranks.

    Args:
        sums: This rank's share of each of ``POLICY_METRICS``.
    """
    means = zip(POLICY_METRICS, all_reduce_sum(sums), strict=True)
    return {f"train/{name}": value for name, value in means}


def frozen_log_probs(reference: Policy, scorer: LogProbPass, part: RolloutBatch) -> Tensor:
    """Return the log-probs, (B, T), of a policy that does not learn."""
    with torch.no_grad():
        return scorer.score(reference, part).log_probs


def sampler_metrics(
    rollout: RolloutBatch, old: Tensor, tokens: Tensor, cap: float | None
) -> dict[str, Tensor]:
    """Compare the trainer's probabilities with the sampler's, over all ranks.

    Args:
        rollout: What was collected.
        old: (B, T), the trainer's log-probs at the weights that collected.
        tokens: Of the kept trajectories, on all ranks.
        cap: Of the correction; None without one.
    """
    mask = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    ratio = importance_ratio(old, rollout.sampled_log_probs)[mask]
    furthest = all_reduce_max(float(ratio.max()) if ratio.numel() else 0.0)
    metrics = {"train/sampler_ratio_max": torch.tensor(furthest)}
    if cap is not None:
        metrics["train/sampler_ratio_capped"] = all_reduce_sum((ratio > cap).sum()) / tokens
    return metrics


class ValueLoss:
    """Add up the value loss of one optimizer batch, micro-batch by micro-batch.

    Every rank must make one, and ask it for its metrics.
    """

    def __init__(self, batch: TrainingBatch, config: CriticConfig) -> None:
        self.batch, self.config = batch, config
        self._mask = config.tokens(batch.rollout)
        self._tokens = all_reduce_sum(self._mask.sum().float())
        self._total = torch.zeros(())

    def add(self, values: Tensor, rows: Tensor, part: RolloutBatch) -> Tensor:
        """Return a micro-batch's loss, as it is weighed.

        Args:
            values: (B, T).
            rows: (B,), of the micro-batch in the optimizer batch.
            part: The micro-batch.
        """
        old, returns = (
            full_tensor[rows, : values.shape[1]]
            for full_tensor in (self.batch.values, self.batch.returns)
        )
        tokens = self._tokens.clamp(min=1)
        loss = value_objective(values, old, returns, part, self.config, tokens)
        self._total += loss.detach().cpu()
        return self.config.value_coef * loss

    def metrics(self) -> dict[str, Tensor]:
        """Return what to log: the loss, and how good the values were that advantages rest on;
        nothing where there was nothing to learn from on any rank."""
        if not self._tokens > 0:
            return {}
        old, returns = self.batch.values, self.batch.returns
        explained = explained_variance(old, returns, self._mask, all_reduce_sum)
        return {
            "train/value_loss": all_reduce_sum(self._total),
            "train/explained_variance": explained,
        }


def value_gradient(
    batch: TrainingBatch,
    compute_advantages: ValueFunction,
    config: CriticConfig,
    scorer: LogProbPass,
    backward: Backward,
) -> dict[str, Tensor]:
    """Lower the value loss, and nothing else, on the trajectories it is taken over; return what to
    log."""
    values = ValueLoss(batch, config)
    for rows, part in scorer.cut(batch.rollout, config.rows(batch.rollout)):
        backward(values.add(score_values(compute_advantages, part), rows, part))
    return values.metrics()


POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")


@dataclass(frozen=True, slots=True)
class LossDenominators:
    """Count what the policy learns from in the whole optimizer batch, on all ranks."""

    counted: Tensor
    """Loss tokens of the kept trajectories."""
    tokens: Tensor
    """The same, or 1 where there are none: what divides metrics."""
    divisor: Tensor
    """What divides the loss, by the kind of aggregation."""

    @classmethod
    def of(cls, rollout: RolloutBatch, aggregation: Aggregation) -> LossDenominators:
        """Count this rank's share and add the others'; every rank must call it."""
        mask = kept_tokens(rollout)
        own = torch.stack([mask.sum().float(), count(mask, aggregation)])
        found = all_reduce_sum(own)
        return cls(found[0], *found.clamp(min=1))


def compute_advantages(
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
    scores: PolicyOutput,
    ref_log_probs: Tensor | None,
    old_log_probs: Tensor,
    advantage: Tensor,
    part: RolloutBatch,
    algorithm: Algorithm,
    coefficients: Coefficients | FixedCoefficients,
    totals: LossDenominators,
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


def build_optimizer(parts: Mapping[str, nn.Module], config: Optimization) -> torch.optim.AdamW:
    """Make one AdamW with a group per part of the networks, so that the step count stays one per
    update."""
    groups: list[dict[str, Any]] = [
        {"name": name, "params": [p for p in part.parameters() if p.requires_grad]}
        for name, part in parts.items()
    ]
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def take_step(
    optimizer: LightningOptimizer, rates: Mapping[str, float], max_grad_norm: float
) -> dict[str, Tensor] | None:
    """Clip each group's gradient by itself, step with the given rates, clear the gradients.

    A critic's large gradient must not throttle the policy, hence one norm per group. A group
    without gradients is left alone.

    Returns:
        The gradient norms before clipping by group; None when one was not finite on any rank, in
        which case no rank steps.
    """
    norms: dict[str, Tensor] = {}
    for group in optimizer.param_groups:
        group["lr"] = rates.get(group["name"], 0.0)
        if any(parameter.grad is not None for parameter in group["params"]):
            norm = nn.utils.clip_grad_norm_(group["params"], max_grad_norm)
            norms[group["name"]] = full_tensor(norm)
    bad = not all(math.isfinite(float(norm)) for norm in norms.values())
    anywhere = float(all_reduce_sum(torch.tensor(float(bad)))) > 0
    if not anywhere:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return None if anywhere else norms
