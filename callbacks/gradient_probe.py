"""Gradient norms of the loss's terms, by how much a group's returns vary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ragen_pl.algorithms.coefficients import LossCoefficients
from ragen_pl.algorithms.env_losses import choose_tokens, chooses_tokens
from ragen_pl.distributed.batch_sharding import regroup
from ragen_pl.distributed.collectives import all_reduce_sum, gather_objects
from ragen_pl.distributed.sharding import summon_full_params
from ragen_pl.models.policy import evaluation_mode
from ragen_pl.ops.gradient_norms import gradient_norms, quantile_buckets
from ragen_pl.ops.group_advantages import group_statistics, trajectory_returns
from ragen_pl.rollout.micro_batching import micro_batches
from ragen_pl.training.access import learner
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.scoring import forward_policy
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.trajectory_layout import TrajectoryLayout
from ragen_pl.training.update import LossDenominators, PolicyObjective, compute_advantages
from ragen_pl.types import PolicyBatch, RolloutBatch, TrainingBatch

TermLosses = Callable[[PolicyBatch], dict[str, Tensor]]
"""Function from a micro-batch to each term's part of the loss."""


@dataclass(frozen=True, slots=True)
class ProbeView:
    """The terms of the objective and the trajectories to probe."""

    names: tuple[str, ...]
    batch: PolicyBatch
    """The trajectories to probe, including those that the filter dropped."""
    among: Callable[[Tensor], TermLosses]
    """Function from (B,) bool, the trajectories over which the loss is taken, to the loss's terms,
    with their coefficients, at the weights that collected the batch. Every rank must call it."""


def policy_terms(module: StarPO, batch: TrainingBatch) -> ProbeView:
    """Separate the terms of the module's objective; only this function uses
    ``ragen_pl.training.update``.

    Advantages are estimated over all trajectories, as without a filter, since its effect is to be
    measured. The old log-probs are the current ones, since nothing was updated yet. A KL penalty on
    rewards is left out.
    """
    algorithm, coefficients = module.algorithm, module.coefficients.current
    reference = module.reference if algorithm.kl_in_loss else None
    rollout = replace(batch.rollout, policy_weights=torch.ones_like(batch.rollout.policy_weights))
    values = module.values(rollout, rollout.kept)
    advantages, _ = compute_advantages(rollout, values, algorithm)
    old = _old_log_probs(module, batch)
    batch = replace(batch, rollout=rollout, advantages=advantages, old_log_probs=old)
    probed = PolicyBatch.of(batch, choose_tokens(algorithm, batch))

    def term_losses(micro_batch: PolicyBatch, denominators: LossDenominators) -> dict[str, Tensor]:
        output, ref_log_probs = forward_policy(module.policy, micro_batch.rollout), None
        if reference is not None:
            with torch.no_grad():
                ref_log_probs = forward_policy(reference, micro_batch.rollout).log_probs
        micro_batch = replace(micro_batch, old_log_probs=output.log_probs.detach())

        def loss(entropy: float = 0.0, kl: float = 0.0) -> Tensor:
            alone = LossCoefficients(kl, entropy, coefficients.entropy_band)
            objective = PolicyObjective(algorithm, alone, denominators)
            return objective(output, micro_batch, ref_log_probs)[0]

        task = loss()
        terms = {"task": task, "entropy": loss(entropy=coefficients.entropy) - task}
        if reference is not None:
            terms["kl"] = loss(kl=coefficients.kl) - task
        return terms

    def among(chosen: Tensor) -> TermLosses:
        weighted = replace(rollout, policy_weights=chosen.float())
        denominators = LossDenominators.of(weighted, algorithm.aggregation)
        return lambda micro_batch: term_losses(micro_batch, denominators)

    names = ("task", "entropy", *(("kl",) if reference is not None else ()))
    return ProbeView(names, probed, among)


def _old_log_probs(module: StarPO, batch: TrainingBatch) -> Tensor:
    """Return the old log-probs, (B, T), of all trajectories where a loss chooses tokens by them;
    those that the filter dropped have none in the batch. Every rank must call it."""
    if not chooses_tokens(module.algorithm):
        return batch.old_log_probs
    current = module.policy_log_probs(batch.rollout)  # nothing was updated yet
    return torch.where(batch.rollout.kept[:, None], batch.old_log_probs, current)


class GradientProbe(RolloutCallback):
    """Gradient norms of the loss's terms by the in-group standard deviation of returns (RAGEN-2).

    The groups of an iteration's first optimizer batch, unfiltered, are sorted into quantile buckets
    of their in-group standard deviation. In each bucket, the task term, the entropy bonus and the
    KL term are differentiated separately, with their coefficients and per sampled token. If the
    task's gradient is below the regularizers', the group contributes only noise. No step is taken,
    and gradients, weights and random streams stay as they are. The cost is memory for three
    gradients, one forward and up to three backward passes over the batch, and the critic's forward;
    a policy loss that chooses tokens takes another forward.

    Args:
        every_n_iterations: Iterations between two probes.
        num_buckets: Number of quantile buckets; bucket 1 has the lowest standard deviation.
    """

    def __init__(self, every_n_iterations: int = 50, num_buckets: int = 6) -> None:
        super().__init__()
        for key, value in (
            ("every_n_iterations", every_n_iterations),
            ("num_buckets", num_buckets),
        ):
            if value < 1:
                raise ValueError(f"{key} is {value}; it must be at least 1")
        self.every_n_iterations = every_n_iterations
        self.num_buckets = num_buckets

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """If the iteration is due, probe its first batch before the update."""
        module = learner(pl_module)
        due = batch_idx == 0 and (module.iteration + 1) % self.every_n_iterations == 0
        if due and isinstance(batch, TrainingBatch):
            self.record(self._probe(trainer, module, batch))
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def _probe(self, trainer: Trainer, module: StarPO, batch: TrainingBatch) -> dict[str, float]:
        """Measure every bucket that has a group; every rank gets the same metrics."""
        # Unsharded, since ranks may take different numbers of passes per bucket, and the gradients
        # are taken with respect to full weights.
        with summon_full_params(module.policy), summon_full_params(module.reference):
            return self._measure(trainer, module, batch)

    def _measure(self, trainer: Trainer, module: StarPO, batch: TrainingBatch) -> dict[str, float]:
        view = policy_terms(module, regroup(batch))
        stds = in_group_stds(view.batch.rollout)
        buckets = quantile_buckets(
            torch.tensor(list(stds.values()), dtype=torch.float64), self.num_buckets
        ).tolist()
        metrics: dict[str, float] = {}
        parameters = [p for p in module.policy.parameters() if p.requires_grad]
        for bucket in sorted(set(buckets)):
            members = [g for g, b in zip(stds, buckets, strict=True) if b == bucket]
            group_ids = view.batch.rollout.group_ids
            chosen = torch.isin(group_ids, torch.tensor(members, device=group_ids.device))
            with torch.enable_grad(), evaluation_mode(module.policy):
                losses = _micro_batch_losses(trainer, module, view, chosen)
                norms = gradient_norms(view.names, losses, parameters, all_reduce_sum)
            name = f"bucket_{bucket + 1}"
            mean = sum(stds[g] for g in members) / len(members)
            metrics[f"diagnostics/in_group_std_{name}"] = mean
            metrics |= {f"diagnostics/grad_{term}_{name}": norm for term, norm in norms.items()}
        return metrics


def _micro_batch_losses(
    trainer: Trainer, module: StarPO, view: ProbeView, chosen: Tensor
) -> Iterator[dict[str, Tensor]]:
    term_losses, budget = view.among(chosen), module.optimization.tokens_per_micro_batch
    for _, micro_batch in micro_batches(view.batch, chosen, budget):
        with trainer.precision_plugin.forward_context():
            losses = term_losses(micro_batch)
        yield losses


def in_group_stds(rollout: RolloutBatch) -> dict[int, float]:
    """Return the in-group standard deviation of the return by group, over all ranks, in order of
    the groups' ids; groups of one have none and are left out. A memory that cuts trajectories does
    not change them."""
    layout = TrajectoryLayout.of(rollout)
    rollout = rollout if layout is None else layout.trajectories(rollout)
    rewards, mask = rollout.rewards.cpu(), rollout.loss_mask.cpu()  # not every device has float64
    own = [trajectory_returns(each, mask) for each in (rewards, rewards.abs())]
    columns = gather_objects((*own, rollout.group_ids.cpu()))
    returns, sizes, ids = (torch.cat(parts) for parts in zip(*columns, strict=True))
    found = group_statistics(returns, sizes, ids)
    spread = zip(ids.tolist(), found.std.tolist(), found.count.tolist(), strict=True)
    return dict(sorted((group_id, std) for group_id, std, count in spread if count > 1))
