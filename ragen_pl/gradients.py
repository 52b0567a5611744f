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
from ragen_pl.models.policy import Policy
from ragen_pl.objective import (
    POLICY_METRICS,
    Totals,
    policy_objective,
    value_objective,
)
from ragen_pl.ops.diagnostics import explained_variance
from ragen_pl.ops.importance import importance_ratio
from ragen_pl.ops.masked import masked_sum
from ragen_pl.scoring import Scorer, ValueFunction, score_values
from ragen_pl.types import Demonstration, RolloutBatch, TrainingBatch

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
        loss = -masked_sum(scorer.score(policy, part).log_probs, part.loss_mask) / tokens
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
    totals = Totals.of(rollout, algorithm.aggregation)
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


def frozen_log_probs(reference: Policy, scorer: Scorer, part: RolloutBatch) -> Tensor:
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
    furthest = largest(float(ratio.max()) if ratio.numel() else 0.0)
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
            whole[rows, : values.shape[1]] for whole in (self.batch.values, self.batch.returns)
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
    estimate: ValueFunction,
    config: CriticConfig,
    scorer: Scorer,
    backward: Backward,
) -> dict[str, Tensor]:
    """Lower the value loss, and nothing else, on the trajectories it is taken over; return what to
    log."""
    values = ValueLoss(batch, config)
    for rows, part in scorer.cut(batch.rollout, config.rows(batch.rollout)):
        backward(values.add(score_values(estimate, part), rows, part))
    return values.metrics()
