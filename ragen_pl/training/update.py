"""The whole update of StarPO and StarPO-S, top to bottom (RAGEN, arXiv 2504.20073, §3 and §4.3).

1. advantages of a collection;
2. the loss of one micro-batch: surrogate − entropy bonus + KL, and the critic's;
3. the gradient of one optimizer batch, summed over its micro-batches;
4. one optimizer step.

Every term of the loss is a sum over tokens divided by a count over the *whole* optimizer batch on
all ranks, so neither micro-batches nor ranks change the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from ragen_pl.ops.losses import (
    Aggregation,
    aggregate,
    clipped_value_loss,
    importance_ratio,
    kl_estimate,
    loss_denominator,
    truncated_importance_weights,
)
from ragen_pl.ops.masked import explained_variance, masked_sum
from ragen_pl.training.scoring import LogProbPass, ValueFunction, score_policy, score_values
from ragen_pl.types import Demonstration, RolloutBatch, TrainingBatch

# --- 1. advantages --------------------------------------------------------------------------------


def compute_advantages(
    rollout: RolloutBatch, values: Tensor, algorithm: Algorithm, kl_penalty: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets, each (B, T).

    Advantages are whitened over the sampled tokens of all kept trajectories of the collection,
    across ranks. The critic's targets cover every trajectory; values must be known where the
    critic learns from it.

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


# --- 2. the loss of one micro-batch ---------------------------------------------------------------

POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")


@dataclass(frozen=True, slots=True)
class LossDenominators:
    """Counts of what the policy learns from in the whole optimizer batch, on all ranks."""

    counted: Tensor
    """Loss tokens of the kept trajectories."""
    tokens: Tensor
    """The same, at least 1: the denominator of metrics."""
    divisor: Tensor
    """The denominator of the loss, by the kind of aggregation."""

    @classmethod
    def of(cls, rollout: RolloutBatch, aggregation: Aggregation) -> LossDenominators:
        """Count this rank's share and add the others'; every rank must call it."""
        mask = kept_tokens(rollout)
        own = torch.stack([mask.sum().float(), loss_denominator(mask, aggregation)])
        found = all_reduce_sum(own)
        return cls(found[0], *found.clamp(min=1))


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """The policy's loss: surrogate, entropy bonus and KL term."""

    algorithm: Algorithm
    coefficients: Coefficients | FixedCoefficients
    """Of the entropy bonus and the KL term, in this update."""
    denominators: LossDenominators

    def __call__(
        self, output: PolicyOutput, part: TrainingBatch, ref_log_probs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch and its share of ``POLICY_METRICS``.

        The surrogate is weighted by trajectory, and by token where the sampler is corrected for.
        The metrics other than the loss are means over tokens.

        Args:
            output: The policy's, on the micro-batch.
            part: The micro-batch; rows of weight 0 do not count.
            ref_log_probs: (B, T), of the policy RL started from; None without a KL term.
        """
        algorithm, rollout, old = self.algorithm, part.rollout, part.old_log_probs
        mask, log_probs = kept_tokens(rollout), output.log_probs
        terms = algorithm.policy_loss(log_probs, old, part.advantages, mask)
        surrogate, cap = terms.loss, algorithm.sampler_ratio_cap
        if cap is not None:
            surrogate = surrogate * truncated_importance_weights(
                old, rollout.sampled_log_probs, cap
            )
        policy_loss = self._mean(surrogate, mask, rollout.policy_weights)
        loss = policy_loss - self.coefficients.entropy * self._mean(output.entropy, mask)
        kl = torch.zeros_like(log_probs)
        if ref_log_probs is not None:
            assert algorithm.kl is not None
            kl = kl_estimate(log_probs, ref_log_probs, algorithm.kl.estimator)
            loss = loss + self.coefficients.kl * self._mean(kl, mask)
        with torch.no_grad():
            approx_kl = kl_estimate(old, log_probs, "k3")
            gap = (old - rollout.sampled_log_probs).abs()
            per_token = (output.entropy, kl, terms.clipped.to(log_probs.dtype), approx_kl, gap)
            means = [masked_sum(each, mask) / self.denominators.tokens for each in per_token]
            return loss, torch.stack([policy_loss, *means]).float().cpu()

    def _mean(self, values: Tensor, mask: Tensor, weights: Tensor | None = None) -> Tensor:
        divisor = self.denominators.divisor
        return aggregate(values, mask, self.algorithm.aggregation, divisor, weights)


class ValueObjective:
    """The critic's clipped loss, summed over the micro-batches of one optimizer batch.

    A mean over tokens, whatever the policy's aggregation: a value is a prediction at a token. Every
    rank must make one, and ask it for its metrics.
    """

    def __init__(self, batch: TrainingBatch, config: CriticConfig) -> None:
        self.batch, self.config = batch, config
        self._mask = config.tokens(batch.rollout)
        self._tokens = all_reduce_sum(self._mask.sum().float())
        self._total = torch.zeros(())

    def __call__(self, values: Tensor, part: TrainingBatch) -> Tensor:
        """Return the weighted loss of a micro-batch.

        Args:
            values: (B, T).
            part: The micro-batch.
        """
        loss = clipped_value_loss(values, part.values, part.returns, self.config.value_clip)
        mean = masked_sum(loss, self.config.tokens(part.rollout)) / self._tokens.clamp(min=1)
        self._total += mean.detach().cpu()
        return self.config.value_coef * mean

    def metrics(self) -> dict[str, Tensor]:
        """Return the loss and the explained variance of the values behind the advantages; nothing
        where there was nothing to learn from on any rank."""
        if not self._tokens > 0:
            return {}
        old, returns = self.batch.values, self.batch.returns
        explained = explained_variance(old, returns, self._mask, all_reduce_sum)
        return {
            "train/value_loss": all_reduce_sum(self._total),
            "train/explained_variance": explained,
        }


# --- 3. the gradient of one optimizer batch -------------------------------------------------------

Backward = Callable[[Tensor], None]
"""Adds the gradient of a loss that is this rank's share of a sum over all ranks."""
REDUCTIONS = {
    "train/updates": "sum",
    "train/update_tokens": "sum",
    "train/sampler_ratio_max": "max",
}
"""How a metric is reduced over an iteration's updates; the others are averaged."""


@dataclass(frozen=True, slots=True)
class Update:
    """Gradients of one optimizer batch; each method returns the metrics to log."""

    policy: Policy
    value_function: ValueFunction | None
    """None without a critic."""
    reference: Policy | None
    """The policy RL started from; None without a KL term in the loss."""
    passes: LogProbPass
    algorithm: Algorithm
    coefficients: Coefficients
    backward: Backward

    def imitate(self, batch: Demonstration) -> dict[str, Tensor]:
        """Accumulate the gradient of the expert's negative log-likelihood per token."""
        rollout = batch.rollout
        tokens = all_reduce_sum(rollout.loss_mask.sum().float()).clamp(min=1)
        total = torch.zeros(())
        for _, part in self.passes.micro_batches(rollout, rollout.policy_weights > 0):
            log_probs = score_policy(self.policy, part).log_probs
            loss = -masked_sum(log_probs, part.loss_mask) / tokens
            self.backward(loss)
            total += loss.detach().cpu()
        return {"train/imitation_loss": all_reduce_sum(total)}

    def improve_critic(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Accumulate the gradient of the value loss alone."""
        config, value_function = self.algorithm.critic, self.value_function
        assert config is not None
        assert value_function is not None
        objective = ValueObjective(batch, config)
        for _, part in self.passes.micro_batches(batch, config.rows(batch.rollout)):
            self.backward(objective(score_values(value_function, part.rollout), part))
        return objective.metrics()

    def improve_policy(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Accumulate the gradient of the policy's loss on the kept trajectories.

        A value head learns in the same pass, on the trajectories its loss is taken over. Where no
        trajectory was kept on any rank only the counts are returned.
        """
        rollout, chosen = batch.rollout, batch.rollout.policy_weights > 0
        algorithm = self.algorithm
        denominators = LossDenominators.of(rollout, algorithm.aggregation)
        objective = PolicyObjective(algorithm, self.coefficients, denominators)
        value_objective = None
        if algorithm.critic is not None and self.policy.value_head is not None:
            value_objective = ValueObjective(batch, algorithm.critic)
            chosen = chosen | algorithm.critic.rows(rollout)
        sums, old = torch.zeros(len(POLICY_METRICS)), batch.old_log_probs.clone()
        for rows, part in self.passes.micro_batches(batch, chosen):
            output = score_policy(self.policy, part.rollout)
            if batch.on_policy:
                own = output.log_probs.detach().to(old)
                old[rows, : own.shape[1]] = own
                part = replace(part, old_log_probs=own)
            loss, metrics = objective(output, part, self._reference_log_probs(part.rollout))
            if value_objective is not None:
                assert output.values is not None
                loss = loss + value_objective(output.values, part)
            self.backward(loss)
            sums += metrics
        found = {} if value_objective is None else value_objective.metrics()
        is_update = bool(denominators.counted > 0)  # alike on all ranks
        found["train/updates"] = torch.tensor(float(is_update))
        found["train/update_tokens"] = denominators.counted
        if is_update:
            means = zip(POLICY_METRICS, all_reduce_sum(sums), strict=True)
            found |= {f"train/{name}": value for name, value in means}
            found |= sampler_metrics(rollout, old, denominators, algorithm.sampler_ratio_cap)
        return found

    def _reference_log_probs(self, part: RolloutBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return score_policy(self.reference, part).log_probs


def sampler_metrics(
    rollout: RolloutBatch, old: Tensor, denominators: LossDenominators, cap: float | None
) -> dict[str, Tensor]:
    """Compare the trainer's probabilities with the sampler's, over all ranks.

    Args:
        rollout: What was collected.
        old: (B, T), the trainer's log-probs at the weights that collected.
        denominators: Of the optimizer batch.
        cap: Of the correction; None without one.
    """
    ratio = importance_ratio(old, rollout.sampled_log_probs)[kept_tokens(rollout)]
    furthest = all_reduce_max(float(ratio.max()) if ratio.numel() else 0.0)
    metrics = {"train/sampler_ratio_max": torch.tensor(furthest)}
    if cap is not None:
        capped = all_reduce_sum((ratio > cap).sum())
        metrics["train/sampler_ratio_capped"] = capped / denominators.tokens
    return metrics


# --- 4. the optimizer step ------------------------------------------------------------------------


def build_optimizer(parts: Mapping[str, nn.Module], config: Optimization) -> torch.optim.AdamW:
    """Make one AdamW with a parameter group per part of the networks, so that the step count stays
    one per update."""
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
    """Clip each group's gradient by itself, step at the given rates, clear the gradients.

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
