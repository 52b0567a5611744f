"""Self-distillation in a rollout: the teacher's pass, and the advantages that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm
from ragen_pl.distributed.collectives import all_reduce_sum
from ragen_pl.models.policy import Policy
from ragen_pl.ops.distillation import distillation_advantages
from ragen_pl.rollout.packing import token_batch, token_rows, trajectory_id
from ragen_pl.rollout.self_distillation import HintedTrajectory, SelfDistillation
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.training.update import loss_coefs
from ragen_pl.types import RolloutBatch, TokenBatch, TrainingBatch


@dataclass(frozen=True, slots=True)
class HintedRollout:
    """The rows of a rollout that are distilled, with hints."""

    rows: Tensor
    """(n,): their rows in the rollout."""
    mask: Tensor
    """(B, T) bool: the rollout's tokens that are distilled."""
    hinted: TokenBatch
    """The n rows with hints; their loss mask marks the same tokens, row by row, in order."""

    @classmethod
    def of(cls, rollout: RolloutBatch, written: Sequence[HintedTrajectory]) -> HintedRollout:
        """Align hinted trajectories, of which there may be none, with a rollout that has them."""
        own = [row for each in written for row in token_rows(each.sampled.turns, each.is_hinted)]
        told = [row for each in written for row in token_rows(each.hinted.turns, each.is_hinted)]
        places = {number: row for row, number in enumerate(rollout.trajectory_ids.tolist())}
        rows = [places[trajectory_id(each.sampled)] for each in written]
        mask = torch.zeros_like(rollout.loss_mask)
        for row, of_row in zip(rows, own, strict=True):
            mask[row, : len(of_row.loss_mask)] = torch.tensor(of_row.loss_mask)
        hinted = replace(token_batch(told), temperature=rollout.temperature)
        return cls(torch.tensor(rows, dtype=torch.long), mask, hinted)

    def spread(self, log_probs: Tensor) -> Tensor:
        """Return the hinted rows' log-probs at the places of the same tokens in the rollout,
        (B, T); 0 elsewhere."""
        result = torch.zeros_like(self.mask, dtype=log_probs.dtype)
        for number, row in enumerate(self.rows.tolist()):
            result[row, self.mask[row]] = log_probs[number, self.hinted.loss_mask[number]]
        return result


def distill(
    batch: TrainingBatch,
    hinted: HintedRollout,
    policy: Policy,
    passes: ForwardPasses,
    config: SelfDistillation,
    algorithm: Algorithm,
) -> tuple[TrainingBatch, dict[str, Tensor]]:
    """Add the advantages of self-distillation; every rank must call it, without gradients.

    Returns:
        The batch, and metrics over all ranks: the share of the kept tokens that are distilled, how
        much more likely the policy finds them with hints, in nats per token, and the size of the
        advantage.
    """
    everyone = torch.ones(len(hinted.rows), dtype=torch.bool)
    teacher = hinted.spread(passes.log_probs(policy, hinted.hinted, everyone))
    # Not the batch's old log-probs, which may be an engine's: its rounding is no teaching.
    unhinted = passes.log_probs(policy, batch.rollout.rows(hinted.rows), everyone)
    student, mask = torch.zeros_like(teacher), hinted.mask
    student[hinted.rows] = unhinted.to(student)
    added = distillation_advantages(teacher, student, mask, config.limit)
    weight = config.coef * loss_coefs(batch.rollout, algorithm)[:, None]
    gap = torch.where(mask, teacher - student, torch.zeros_like(added))
    sums = torch.stack(
        [
            mask.sum().float(),
            batch.rollout.kept_tokens.sum().float(),
            gap.sum().float(),
            (weight * added).abs().sum().float(),
        ]
    )
    tokens, kept, gain, size = all_reduce_sum(sums)
    metrics = {"train/distill_share": tokens / kept.clamp(min=1)}
    if tokens > 0:
        metrics["train/distill_gain"] = gain / tokens
        metrics["train/distill_advantage"] = size / tokens
    return replace(batch, advantages=batch.advantages + weight * added), metrics
