"""The complete update of StarPO and StarPO-S, in order (RAGEN, arXiv 2504.20073, §3 and §4.3).

1. advantages of a rollout;
2. loss of one micro-batch: surrogate − entropy bonus + KL, and the critic's value loss;
3. gradient of one optimizer batch, summed over its micro-batches;
4. optimizer step.

Every term of the loss is a sum over tokens divided by a count over the *whole* optimizer batch on
all ranks, so neither micro-batches nor ranks change the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from ragen_pl.algorithms.coefficients import Coefficients, LossCoefficients
from ragen_pl.algorithms.config import Algorithm, ThoughtAdvantage
from ragen_pl.algorithms.env_losses import choose_tokens, token_losses
from ragen_pl.algorithms.estimators import CriticConfig
from ragen_pl.algorithms.estimators.base import AdvantageEstimator, estimate
from ragen_pl.distributed.collectives import all_reduce_max, all_reduce_sum, gather_objects
from ragen_pl.distributed.sharding import full_tensor, sum_copies_once
from ragen_pl.models.policy import Policy, PolicyOutput
from ragen_pl.ops.advantages import Turns, thought_advantages
from ragen_pl.ops.losses import (
    Aggregation,
    aggregate,
    clipped_value_loss,
    distance_to_band,
    importance_ratio,
    kl_estimate,
    loss_denominator,
    truncated_importance_weights,
)
from ragen_pl.ops.masked import explained_variance, masked_sum
from ragen_pl.ops.policy_change import effective_share, trajectory_log_weights
from ragen_pl.rollout.micro_batching import Batch
from ragen_pl.training.scoring import (
    MAX_LOG_PROB_GAP,
    ForwardPasses,
    ValueFunction,
    forward_policy,
    forward_values,
)
from ragen_pl.training.trajectory_layout import TrajectoryLayout
from ragen_pl.types import ImitationBatch, PolicyBatch, RolloutBatch, TrainingBatch

# --- 1. advantages --------------------------------------------------------------------------------


def compute_advantages(
    rollout: RolloutBatch, values: Tensor, algorithm: Algorithm, kl_penalty: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets, each (B, T).

    They are estimated along trajectories: where one is several rows, the estimator sees its sampled
    tokens in one, so that credit passes from each row to the one before.

    With a ``thought_advantage``, the estimator sees the rewards without the terms that judge the
    thought, which are added to the advantages of the thought's tokens.

    Advantages are whitened over the sampled tokens of all kept trajectories of the rollout, across
    ranks; in a mixture, over those of each environment by itself. The critic's targets cover every
    trajectory, so values must be given wherever the critic is trained.

    Args:
        rollout: This rank's whole rollout.
        values: Values, (B, T); zeros without a critic.
        algorithm: Algorithm with the advantage estimator.
        kl_penalty: KL penalty of each token, (B, T), subtracted at that token, whichever tokens the
            rewards are credited to; before an environment's own factor.
    """
    layout = TrajectoryLayout.of(rollout)
    if layout is None:
        return _advantages(rollout, values, algorithm, kl_penalty)
    penalty = None if kl_penalty is None else layout.joined(kl_penalty)
    advantages, returns = _advantages(
        layout.trajectories(rollout), layout.joined(values), algorithm, penalty
    )
    return layout.divided(advantages), layout.divided(returns)


def _advantages(
    rollout: RolloutBatch, values: Tensor, algorithm: Algorithm, kl_penalty: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets of whole trajectories; in a mixture, those of each
    environment by itself."""
    estimator, thought = algorithm.advantage, algorithm.thought_advantage
    if len(rollout.env_names) == 1:
        return _advantages_in_env(rollout, values, estimator, thought, kl_penalty)
    if kl_penalty is not None:
        kl_penalty = kl_factors(rollout, algorithm)[:, None] * kl_penalty
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    for index, name in enumerate(rollout.env_names):  # on every rank, even without rows of it
        own = torch.nonzero(rollout.env_ids == index)[:, 0]
        penalty = None if kl_penalty is None else kl_penalty[own]
        part, part_values = rollout.rows(own), values[own]
        estimates, targets = _advantages_in_env(part, part_values, estimator, thought, penalty)
        override = algorithm.per_env.get(name)
        if override is not None and override.advantage is not None:
            # the critic's targets stay the run's
            other = override.advantage
            estimates, _ = _advantages_in_env(part, part_values, other, thought, penalty)
        advantages[own], returns[own] = estimates.to(advantages), targets.to(returns)
    return loss_coefs(rollout, algorithm)[:, None] * advantages, returns


def _advantages_in_env(
    rollout: RolloutBatch,
    values: Tensor,
    estimator: AdvantageEstimator,
    thought: ThoughtAdvantage | None,
    kl_penalty: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return advantages and the critic's targets of trajectories in one environment."""
    if thought is not None:
        rollout = replace(rollout, rewards=rollout.outcome_rewards)
    advantages, returns = estimate(estimator, rollout, values, kl_penalty)
    if thought is not None:
        of_thoughts = thought_advantages(
            rollout.thought_rewards,
            Turns(rollout.loss_mask, rollout.turn_index, rollout.turn_ends),
            rollout.thought_mask,
            rollout.kept,
            all_reduce_sum,
        )
        advantages = advantages + thought.coef * of_thoughts
    return advantages, returns


def loss_coefs(rollout: RolloutBatch, algorithm: Algorithm) -> Tensor:
    """Return the weight of each row's policy loss, (B,): that of its environment in a mixture."""
    return _of_envs(rollout, {name: own.coef for name, own in algorithm.per_env.items()})


def entropy_factors(rollout: RolloutBatch, algorithm: Algorithm) -> Tensor:
    """Return each row's factor of the entropy coefficient, (B,)."""
    return _of_envs(rollout, {name: own.entropy_factor for name, own in algorithm.per_env.items()})


def kl_factors(rollout: RolloutBatch, algorithm: Algorithm) -> Tensor:
    """Return each row's factor of the KL coefficient, (B,)."""
    return _of_envs(rollout, {name: own.kl_factor for name, own in algorithm.per_env.items()})


def _of_envs(rollout: RolloutBatch, factors: Mapping[str, float]) -> Tensor:
    """Look up each row's factor by its environment; 1 for one without."""
    if not factors:
        return rollout.rewards.new_ones(len(rollout))
    by_env = rollout.rewards.new_tensor([factors.get(name, 1.0) for name in rollout.env_names])
    return by_env[rollout.env_ids]


# --- 2. loss of one micro-batch -------------------------------------------------------------------

POLICY_METRICS = ("policy_loss", "entropy", "kl", "clip_fraction", "approx_kl", "log_prob_gap")


@dataclass(frozen=True, slots=True)
class LossDenominators:
    """Denominators of the policy loss and its metrics, over the whole optimizer batch on all
    ranks."""

    num_loss_tokens: Tensor
    """Loss tokens of the kept trajectories."""
    for_metrics: Tensor
    """Number of loss tokens, but at least 1."""
    for_loss: Tensor
    """Denominator of the loss, which depends on the kind of aggregation; at least 1."""

    @classmethod
    def of(cls, rollout: RolloutBatch, aggregation: Aggregation) -> LossDenominators:
        """Count over all ranks; every rank must call it."""
        mask = rollout.kept_tokens
        counted = loss_denominator(mask, rollout.trajectory_ids, aggregation)
        own = torch.stack([mask.sum().float(), counted])
        found = all_reduce_sum(own)
        return cls(found[0], *found.clamp(min=1))


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """The policy loss: surrogate − entropy bonus + KL term."""

    algorithm: Algorithm
    coefficients: LossCoefficients
    denominators: LossDenominators

    def __call__(
        self, output: PolicyOutput, micro_batch: PolicyBatch, ref_log_probs: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a micro-batch and its share of ``POLICY_METRICS``.

        The surrogate is weighted by trajectory and, with truncated importance sampling, by token. A
        band around the entropy of earlier updates takes the distance from it off the bonus.
        The metrics other than the loss are means over tokens. In a mixture, a row has the surrogate
        of its environment, and its bonus and KL have the factors of that.

        Args:
            output: The policy's output on the micro-batch.
            micro_batch: Rows of the optimizer batch; those of policy weight 0 do not count.
            ref_log_probs: Log-probs of the policy that RL started from, (B, T); None without a KL
                term.
        """
        algorithm, rollout, old = self.algorithm, micro_batch.rollout, micro_batch.old_log_probs
        mask, log_probs = rollout.kept_tokens, output.log_probs
        token_loss = token_losses(algorithm, log_probs, micro_batch)
        surrogate, cap = token_loss.loss, algorithm.tis_cap
        if cap is not None:
            surrogate = surrogate * truncated_importance_weights(
                old, rollout.sampled_log_probs, cap
            )
        policy_loss = self._mean(surrogate, rollout, rollout.policy_weights)
        bonus, band = output.entropy, self.coefficients.entropy_band
        if band is not None:
            bonus = bonus - band.weight * distance_to_band(bonus, band.low, band.high)
        mean_bonus = self._mean(bonus, rollout, entropy_factors(rollout, algorithm))
        loss = policy_loss - self.coefficients.entropy * mean_bonus
        kl = torch.zeros_like(log_probs)
        if ref_log_probs is not None:
            assert algorithm.kl is not None
            kl = kl_estimate(log_probs, ref_log_probs, algorithm.kl.estimator)
            mean_kl = self._mean(kl, rollout, kl_factors(rollout, algorithm))
            loss = loss + self.coefficients.kl * mean_kl
        with torch.no_grad():
            approx_kl = kl_estimate(old, log_probs, "k3")
            gap = (old - rollout.sampled_log_probs).abs()
            per_token = (output.entropy, kl, token_loss.clipped.to(log_probs.dtype), approx_kl, gap)
            means = [masked_sum(each, mask) / self.denominators.for_metrics for each in per_token]
            return loss, torch.stack([policy_loss, *means]).float().cpu()

    def _mean(self, values: Tensor, rollout: RolloutBatch, weights: Tensor) -> Tensor:
        return aggregate(
            values,
            rollout.kept_tokens,
            rollout.trajectory_tokens,
            self.algorithm.aggregation,
            self.denominators.for_loss,
            weights,
        )


class ValueObjective:
    """The critic's clipped value loss, summed over the micro-batches of one optimizer batch.

    The loss is a mean over tokens, whatever the policy's aggregation, because a value is a
    prediction at a token. Every rank must construct one and call its ``metrics``.
    """

    def __init__(self, batch: TrainingBatch, config: CriticConfig) -> None:
        self.batch, self.config = batch, config
        self._mask = config.tokens(batch.rollout)
        self._num_tokens = all_reduce_sum(self._mask.sum().float())
        self._total = torch.zeros(())

    def __call__(self, values: Tensor, micro_batch: TrainingBatch) -> Tensor:
        """Return the loss of a micro-batch times its coefficient.

        Args:
            values: Values with gradient, (B, T).
            micro_batch: Rows of the optimizer batch.
        """
        loss = clipped_value_loss(
            values, micro_batch.values, micro_batch.returns, self.config.value_clip
        )
        mask = self.config.tokens(micro_batch.rollout)
        mean = masked_sum(loss, mask) / self._num_tokens.clamp(min=1)
        self._total += mean.detach().cpu()
        return self.config.value_coef * mean

    def metrics(self) -> dict[str, Tensor]:
        """Return the loss and the explained variance of the values that the advantages used; empty
        if the critic had no tokens to train on, on any rank."""
        if not self._num_tokens > 0:
            return {}
        old, returns = self.batch.values, self.batch.returns
        explained = explained_variance(old, returns, self._mask, all_reduce_sum)
        return {
            "train/value_loss": all_reduce_sum(self._total),
            "train/explained_variance": explained,
        }


# --- 3. gradient of one optimizer batch -----------------------------------------------------------

Backward = Callable[[Tensor], None]
"""Function that accumulates the gradient of a loss, this rank's share of a sum over all ranks."""
REDUCTIONS = {
    "train/updates": "sum",
    "train/update_tokens": "sum",
    "train/imitation_tokens": "sum",
    "train/hindsight_tokens": "sum",
    "train/hindsight_share": "max",
    "train/sampler_ratio_max": "max",
    "train/skipped_steps": "max",
}
"""Reduction of a metric over an iteration's updates; the others are averaged."""


@dataclass(frozen=True, slots=True)
class Update:
    """Gradients of one optimizer batch; each method accumulates one and returns metrics to log."""

    policy: Policy
    value_function: ValueFunction | None
    """None without a critic."""
    reference: Policy | None
    """The policy that RL started from; None without a KL term in the loss."""
    passes: ForwardPasses
    algorithm: Algorithm
    coefficients: Coefficients
    backward: Backward

    def backward_imitation(self, batch: ImitationBatch, name: str) -> dict[str, Tensor]:
        """Accumulate the gradient of the responses' negative log-likelihood per token.

        Args:
            batch: Responses to imitate.
            name: First part of the metrics' names.
        """
        num_tokens = all_reduce_sum(batch.loss_mask.sum().float())
        total = torch.zeros(())
        everyone = torch.ones(len(batch), dtype=torch.bool, device=batch.loss_mask.device)
        for _, micro_batch in self._micro_batches(self.policy, batch, everyone):
            log_probs = forward_policy(self.policy, micro_batch).log_probs
            loss = -masked_sum(log_probs, micro_batch.loss_mask) / num_tokens.clamp(min=1)
            self.backward(loss)
            total += loss.detach().cpu()
        return {f"train/{name}_loss": all_reduce_sum(total), f"train/{name}_tokens": num_tokens}

    def backward_critic(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Accumulate the gradient of the value loss alone."""
        config, value_function = self.algorithm.critic, self.value_function
        assert config is not None
        assert value_function is not None
        objective = ValueObjective(batch, config)
        network = self.policy if self.policy.value_head is not None else value_function
        assert isinstance(network, nn.Module)
        for _, micro_batch in self._micro_batches(network, batch, config.rows(batch.rollout)):
            values = forward_values(value_function, micro_batch.rollout)
            self.backward(objective(values, micro_batch))
        return objective.metrics()

    def backward_policy(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Accumulate the gradient of the policy loss on the kept trajectories.

        With a value head on the policy, the value loss is added in the same pass, on the
        trajectories that the critic trains on. If no rank kept a trajectory, only the counts are
        returned.
        """
        rollout, chosen = batch.rollout, batch.rollout.kept
        algorithm = self.algorithm
        denominators = LossDenominators.of(rollout, algorithm.aggregation)
        objective = PolicyObjective(algorithm, self.coefficients.current, denominators)
        value_objective = None
        if algorithm.critic is not None and self.policy.value_head is not None:
            value_objective = ValueObjective(batch, algorithm.critic)
            chosen = chosen | algorithm.critic.rows(rollout)
        policy_batch = PolicyBatch.of(batch, choose_tokens(algorithm, batch))
        sums, old = torch.zeros(len(POLICY_METRICS)), batch.old_log_probs.clone()
        for rows, micro_batch in self._micro_batches(self.policy, policy_batch, chosen):
            output = forward_policy(self.policy, micro_batch.rollout)
            if batch.on_policy:
                own = output.log_probs.detach().to(old)
                old[rows, : own.shape[1]] = own
                micro_batch = replace(micro_batch, old_log_probs=own, old_is_sampled=False)
            ref_log_probs = self._ref_log_probs(micro_batch.rollout)
            loss, shares = objective(output, micro_batch, ref_log_probs)
            if value_objective is not None:
                assert output.values is not None
                loss = loss + value_objective(output.values, micro_batch)
            self.backward(loss)
            sums += shares
        metrics = {} if value_objective is None else value_objective.metrics()
        is_update = bool(denominators.num_loss_tokens > 0)  # the same on all ranks
        metrics["train/updates"] = torch.tensor(float(is_update))
        metrics["train/update_tokens"] = denominators.num_loss_tokens
        if is_update:
            means = zip(POLICY_METRICS, all_reduce_sum(sums), strict=True)
            metrics |= {f"train/{name}": value for name, value in means}
            metrics |= sampler_metrics(rollout, old, denominators, algorithm.tis_cap)
            if policy_batch.chosen is not None:
                num_chosen = all_reduce_sum(policy_batch.chosen.sum())
                metrics["train/chosen_fraction"] = num_chosen / denominators.for_metrics
        return metrics

    def _micro_batches(
        self, network: nn.Module, batch: Batch, chosen: Tensor
    ) -> Iterator[tuple[Tensor, Batch]]:
        """Yield the micro-batches of a network's gradient in one optimizer step."""
        return sum_copies_once(network, self.passes.micro_batches(batch, chosen))

    def _ref_log_probs(self, micro_batch: RolloutBatch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            return forward_policy(self.reference, micro_batch).log_probs


def sampler_metrics(
    rollout: RolloutBatch, old: Tensor, denominators: LossDenominators, cap: float | None
) -> dict[str, Tensor]:
    """Return how far the trainer's token probabilities are from the sampler's, over all ranks.

    Args:
        rollout: The optimizer batch's trajectories.
        old: Log-probs of the trainer at the weights that sampled, (B, T).
        denominators: Denominators of the optimizer batch.
        cap: Cap of the truncated importance weights; None without that correction.
    """
    ratio = importance_ratio(old, rollout.sampled_log_probs)[rollout.kept_tokens]
    ratio_max = all_reduce_max(float(ratio.max()) if ratio.numel() else 0.0)
    own = trajectory_log_weights(
        old, rollout.sampled_log_probs, rollout.kept_tokens, rollout.trajectory_ids
    )
    metrics = {
        "train/sampler_ratio_max": torch.tensor(ratio_max),
        "train/sampler_ess": torch.tensor(effective_share(torch.cat(gather_objects(own)))),
    }
    if cap is not None:
        num_capped = all_reduce_sum((ratio > cap * (1 + MAX_LOG_PROB_GAP)).sum())
        metrics["train/tis_clip_fraction"] = num_capped / denominators.for_metrics
    return metrics


# --- 4. optimizer step ----------------------------------------------------------------------------


def clip_and_step(
    optimizer: LightningOptimizer, learning_rates: Mapping[str, float], max_grad_norm: float
) -> dict[str, Tensor] | None:
    """Clip the gradient of each part of the networks, take a step, clear the gradients.

    A part may have several parameter groups. One norm per part keeps a large gradient of the
    critic from shrinking the policy's. A part without gradients is left unchanged.

    Args:
        learning_rates: Learning rates by part, multiplied by the ``lr_factor`` of groups that have
            one; 0 for parts not named.

    Returns:
        The gradient norms before clipping, by part; None when one was not finite on any rank, in
        which case no rank takes the step.
    """
    parts: dict[str, list[nn.Parameter]] = {}
    for group in optimizer.param_groups:
        group["lr"] = learning_rates.get(group["part"], 0.0) * group.get("lr_factor", 1.0)
        parts.setdefault(group["part"], []).extend(group["params"])
    norms = {
        name: full_tensor(nn.utils.clip_grad_norm_(weights, max_grad_norm))
        for name, weights in parts.items()
        if any(weight.grad is not None for weight in weights)
    }
    is_finite = all(math.isfinite(float(norm)) for norm in norms.values())
    is_skipped = float(all_reduce_sum(torch.tensor(float(not is_finite)))) > 0
    if not is_skipped:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return None if is_skipped else norms
