"""Log-probs of the sampled tokens, computed by the trainer's forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.packing import pack
from ragen_pl.training.scoring import ForwardPasses
from ragen_pl.types import RolloutBatch, trainable_trajectories


@dataclass(frozen=True)
class Recomputed:
    """A small rollout with the trainer's log-probs and entropies, each (B, T)."""

    policy: Policy
    passes: ForwardPasses
    rollout: RolloutBatch
    log_probs: Tensor
    entropy: Tensor


def recompute(subject: ExaminedRun) -> Recomputed | None:
    """Pack the sampled trajectories and score their tokens; None if nothing was sampled."""
    trajectories = trainable_trajectories(subject.samples)
    if not trajectories:
        return None
    parts, loaded = subject.parts, subject.policy
    rollout = pack(
        trajectories,
        weights=[1.0] * len(trajectories),
        temperature=subject.data.rollout.temperature,
    )
    model = loaded.language.model
    model.train()  # as in a run; there is no dropout
    policy = Policy(model, parts.model.algorithm.values_from_policy)
    policy.to(model.device)
    budget = parts.model.optimization.tokens_per_micro_batch
    passes = ForwardPasses.of(policy, budget, model.device)
    everyone = torch.ones(len(rollout), dtype=torch.bool)
    with torch.no_grad(), loaded.autocast():
        log_probs, entropy = passes.log_probs_and_entropies(policy, rollout, everyone)
    return Recomputed(policy, passes, rollout, log_probs, entropy)
