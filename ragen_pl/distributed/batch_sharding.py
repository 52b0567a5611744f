"""Deal annotated trajectories to optimizer batches, and within each to the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.types import TensorBatch, TrainingBatch

Batch = TypeVar("Batch", bound=TensorBatch)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Say where each of B trajectories is learned from."""

    batch: Tensor
    """(B,) int: its optimizer batch."""
    rank: Tensor
    """(B,) int."""


def assign_batches(
    groups: Tensor, kept: Tensor, tokens: Tensor, batches: int, ranks: int
) -> Assignment:
    """Deal whole groups into optimizer batches, kept groups evenly first, then dropped ones; and
    the trajectories of each batch to the ranks, evenly by tokens.

    Kept and dropped trajectories are dealt apart: only a critic learns from the latter.

    Args:
        groups: (B,) int, of all ranks.
        kept: (B,) bool, whether the policy learns from a trajectory.
        tokens: (B,) int, of each.
        batches: Optimizer batches.
        ranks: To share each of them.
    """
    names, place = torch.unique(groups, return_inverse=True)
    is_kept = torch.zeros(len(names), dtype=torch.long).index_add(0, place, kept.long()) > 0
    order = torch.argsort(is_kept.logical_not().to(torch.uint8), stable=True)
    turn = torch.empty(len(names), dtype=torch.long)
    turn[order] = torch.arange(len(names)) % batches
    batch, of_rank = turn[place], torch.zeros_like(groups)
    for number in range(batches):
        for whether in (True, False):
            rows = torch.nonzero((batch == number) & (kept == whether))[:, 0]
            of_rank[rows] = balance_by_tokens(tokens[rows], ranks)
    return Assignment(batch, of_rank)


def balance_by_tokens(tokens: Tensor, ranks: int) -> Tensor:
    """Give each trajectory, the longest first, to the rank that has the fewest tokens, (n,)."""
    load, chosen = [0] * ranks, torch.zeros_like(tokens)
    for row in torch.argsort(tokens, descending=True, stable=True).tolist():
        least = min(range(ranks), key=load.__getitem__)
        chosen[row] = least
        load[least] += int(tokens[row])
    return chosen


def optimizer_batches(own: TrainingBatch, count: int) -> list[TrainingBatch]:
    """Exchange trajectories between the ranks and return this rank's share of every optimizer
    batch; every rank must call it.

    A share may be empty. Its rows are in the order of their identities.

    Args:
        own: What this rank collected.
        count: Optimizer batches to make.
    """
    rollout = own.rollout
    facts = torch.stack(
        (
            rollout.trajectory_ids,
            rollout.group_ids,
            (rollout.policy_weights > 0).long(),
            rollout.attention_mask.sum(1),
        )
    ).cpu()
    table = torch.cat(gather_objects(facts), dim=1)
    ids, groups, kept, tokens = table[:, torch.argsort(table[0])]
    dealt = assign_batches(groups, kept > 0, tokens, count, world_size())
    if world_size() == 1:
        batch = dealt.batch[torch.searchsorted(ids, facts[0])]
    else:
        own = _exchanged(own, dealt.rank[torch.searchsorted(ids, facts[0])])
        batch = dealt.batch[dealt.rank == rank()]
    return [own.rows(batch == number) for number in range(count)]


def regroup(own: TrainingBatch) -> TrainingBatch:
    """Exchange trajectories so that each group lies on one rank, as estimators that compare its
    members ask for; every rank must call it. A rank may be left with nothing."""
    if world_size() == 1:
        return own
    device = own.rollout.group_ids.device
    own = own.to("cpu")  # what another rank sends would come back on that rank's device
    groups = own.rollout.group_ids
    every = torch.unique(torch.cat(gather_objects(groups)))
    return _exchanged(own, torch.searchsorted(every, groups) % world_size()).to(device)


def _exchanged(own: TrainingBatch, destination: Tensor) -> TrainingBatch:
    """Send every row to the rank it is dealt to; return what this rank is left with."""
    me = rank()
    leaving = {other: own.rows(destination == other) for other in set(destination.tolist()) - {me}}
    arriving = [sent[me] for sent in gather_objects(leaving) if me in sent]
    together = concatenate_batches([own.rows(destination == me), *arriving])
    return together.rows(torch.argsort(together.rollout.trajectory_ids))


def concatenate_batches(parts: Sequence[Batch]) -> Batch:
    """Put batches below one another; columns are padded to the longest row."""

    def below(values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, TensorBatch):
            return concatenate_batches(values)
        if not isinstance(first, Tensor):
            assert len(set(values)) == 1, f"batches differ: {values}"
            return first
        if first.ndim < 2:
            return torch.cat(values)
        width = max(value.shape[1] for value in values)
        return torch.cat([pad(value, (0, width - value.shape[1])) for value in values])

    columns = [field.name for field in fields(parts[0])]
    return replace(
        parts[0], **{name: below([getattr(part, name) for part in parts]) for name in columns}
    )
