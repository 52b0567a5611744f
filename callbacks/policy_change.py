"""Metrics of what an iteration's update changed, from a sample of its trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ragen_pl.algorithms.optimization import EXACT
from ragen_pl.distributed.collectives import all_reduce_sum, gather_objects
from ragen_pl.ops.losses import kl_estimate
from ragen_pl.ops.masked import masked_mean
from ragen_pl.ops.policy_change import effective_share, trajectory_log_weights
from ragen_pl.training.access import data_module, learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.scoring import MAX_LOG_PROB_GAP, log_prob_gap
from ragen_pl.types import HindsightBatch, RolloutBatch, TrainingBatch

UPDATE_KL, UPDATES = "train/update_kl", "train/updates"
HINDSIGHT_KL = "train/hindsight_kl"


@dataclass(frozen=True, slots=True)
class _Sample:
    """This rank's part of the sampled trajectories, before the update."""

    rollout: RolloutBatch
    log_probs: Tensor
    """(B, T)."""
    gains: Tensor
    """(B, T) bool: sampled tokens with a positive advantage."""


class PolicyChange(RolloutCallback):
    """The change of the policy by an iteration's update, measured on trajectories it learned from.

    A sample of the kept trajectories is scored before the first update and again after the last
    one, before any step of hindsight imitation. In float32 the log-probs of an engine that samples
    with the trainer's model serve as the first scores, once they have been found to agree. From the
    two it logs

    - ``train/update_kl``: KL(before ‖ after) in nats per sampled token, by the estimator k3. Where
      a collection makes one update, ``train/approx_kl`` is 0 by definition, and this is what the
      alarm judges the length of a step by;
    - ``train/positive_log_prob_change``: the mean change of the log-prob of tokens with a positive
      advantage. Below 0 the update makes good actions less likely (arXiv 2512.04220);
    - ``train/update_ess``: the share of trajectories that would count if the policy after the
      update learned from them once more.

    With hindsight imitation the sample is scored a third time, after its steps, for

    - ``train/hindsight_kl``: KL, as above, between the policies before and after them. Imitation
      has a rate of its own, so the alarm does not judge RL by it.

    The level of the second, ``train/positive_log_prob``, costs no pass and is logged in every
    iteration, of all kept trajectories.

    The sample is the same for any number of ranks. Tokens that an update was made of change more
    than others, so these are upper bounds for what fresh samples would show.

    Args:
        trajectories: Trajectories to score again, over all ranks, evenly spread over the kept ones;
            0 switches it off. A scoring is a forward pass over them.
        always: Whether to score in iterations of several updates as well, where the alarm does not
            need it.
    """

    def __init__(self, trajectories: int = 16, always: bool = False) -> None:
        super().__init__()
        if trajectories < 0:
            raise ValueError(f"trajectories is {trajectories}; it must be at least 0, which is off")
        if always and not trajectories:
            raise ValueError("always is true, but trajectories is 0: score at least 1, or not")
        self.trajectories, self.always = trajectories, always
        self._sample: _Sample | None = None
        self._sampler_agrees = False
        """Whether a sample has shown that sampler and trainer, in float32, are one policy."""
        self._after_rl: Tensor | None = None
        """Log-probs of the sample after RL's updates, (B, T), if imitation follows."""

    def on_rollout_start(
        self, trainer: Trainer, module: LightningModule, iteration: int, num_trajectories: int
    ) -> None:
        """Drop the sample of an iteration that was interrupted."""
        self._sample = self._after_rl = None

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        """Score the sample with the policy that collected it, unless the trainer has (in other
        micro-batches, whose rounding may differ) or the sampler's log-probs are known to be the
        trainer's: an engine with a model of its own may differ by as much as an update."""
        gains = batch.rollout.kept_tokens & (batch.advantages > 0)
        level = masked_mean(batch.old_log_probs.double().cpu(), gains.cpu(), all_reduce_sum)
        if all_reduce_sum(gains.sum().cpu()) > 0:
            self.record({"train/positive_log_prob": float(level)})
        is_due = self.always or data_module(trainer).rollout.may_update_once
        if not self.trajectories or not is_due:
            return
        chosen = sampled_trajectories(batch.rollout, self.trajectories)
        rollout, before = batch.rollout.rows(chosen), batch.old_log_probs[chosen]
        if batch.old_is_sampled and not self._sampler_agrees:
            own = learner(module).policy_log_probs(rollout)
            gap = log_prob_gap(own, before, rollout.kept_tokens)
            may_agree = learner(module).engine.uses_trainer_model and (
                str(trainer.precision) == EXACT
            )
            self._sampler_agrees = may_agree and 0 <= gap <= MAX_LOG_PROB_GAP
            # As in later iterations where they agree: a resumed run is the same.
            before = before if self._sampler_agrees else own
        self._sample = _Sample(rollout, before, gains[chosen])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Score the sample again when RL's updates are made and the first step of imitation is
        about to be."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        is_first = isinstance(batch, HindsightBatch) and self._after_rl is None
        if is_first and self._sample is not None:
            self._after_rl = learner(pl_module).policy_log_probs(self._sample.rollout)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Score the sample again and log the change, unless the policy was not updated."""
        super().on_train_epoch_end(trainer, pl_module)
        sample, self._sample = self._sample, None
        after_rl, self._after_rl = self._after_rl, None
        is_updated = bool(trainer.callback_metrics.get(UPDATES, 0) > 0)
        if sample is None or (after_rl is None and not is_updated):
            return
        end = learner(pl_module).policy_log_probs(sample.rollout)
        metrics: dict[str, float] = {}
        if is_updated:
            after = end if after_rl is None else after_rl
            metrics |= measure_change(sample.rollout, sample.log_probs, after, sample.gains)
        if after_rl is not None:
            metrics[HINDSIGHT_KL] = _kl(after_rl, end, sample.rollout.kept_tokens)
        # The values are equal on all ranks; sync_dist keeps Lightning from warning.
        pl_module.log_dict(metrics, on_step=False, on_epoch=True, batch_size=1, sync_dist=True)


def sampled_trajectories(rollout: RolloutBatch, count: int) -> Tensor:
    """Choose kept trajectories, evenly spaced among the sorted ids of all ranks.

    Every rank must call it.

    Args:
        rollout: The trajectories of this rank.
        count: Trajectories to choose over all ranks; all if there are fewer.

    Returns:
        The rows of this rank's chosen trajectories, (n,) int.
    """
    kept = rollout.trajectory_ids[rollout.kept_tokens.any(1)]
    found = torch.unique(torch.cat([part.cpu() for part in gather_objects(kept.cpu())]))
    count = min(count, len(found))
    places = (2 * torch.arange(count) + 1) * len(found) // (2 * max(1, count))
    chosen = torch.isin(rollout.trajectory_ids.cpu(), found[places])
    return torch.nonzero(chosen)[:, 0].to(rollout.trajectory_ids.device)


def measure_change(
    rollout: RolloutBatch, before: Tensor, after: Tensor, gains: Tensor
) -> dict[str, float]:
    """Return the metrics of a change of the policy over all ranks; those of nothing are left out.

    Every rank must call it.

    Args:
        rollout: This rank's trajectories, sampled by the policy before the change.
        before: Log-probs before it, (B, T).
        after: Log-probs after it, (B, T).
        gains: The sampled tokens with a positive advantage, (B, T) bool.
    """
    before, after = before.cpu().double(), after.cpu().double()
    mask, gains = rollout.kept_tokens.cpu(), gains.cpu()
    own = trajectory_log_weights(after, before, mask, rollout.trajectory_ids.cpu())
    weights = torch.cat(gather_objects(own))
    counts = all_reduce_sum(torch.stack((mask.sum(), gains.sum())))
    change = masked_mean(after - before, gains, all_reduce_sum)
    metrics: dict[str, float] = {}
    if counts[0] > 0:
        kl = _kl(before, after, mask)
        metrics |= {UPDATE_KL: kl, "train/update_ess": effective_share(weights)}
    if counts[1] > 0:
        metrics["train/positive_log_prob_change"] = float(change)
    return metrics


def _kl(before: Tensor, after: Tensor, mask: Tensor) -> float:
    """Return the mean of KL(before ‖ after) over the tokens of all ranks, by k3."""
    estimate = kl_estimate(before.cpu().double(), after.cpu().double(), "k3")
    return float(masked_mean(estimate, mask.cpu(), all_reduce_sum))
