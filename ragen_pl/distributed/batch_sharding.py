"""The assignment of trajectories to optimizer batches, and within each batch to ranks."""

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
    """The optimizer batch and the rank of each of B trajectories."""

    batch: Tensor
    """(B,) int."""
    rank: Tensor
    """(B,) int."""


def assign_batches(
    groups: Tensor, kept: Tensor, tokens: Tensor, batches: int, ranks: int
) -> Assignment:
    """Assign whole groups to optimizer batches, and the trajectories of each batch to ranks.

    Kept groups are spread evenly over the batches first, then dropped ones. Within a batch, kept
    and dropped trajectories are balanced by tokens over the ranks separately, because only a critic
    is trained on dropped ones.

    Args:
        groups: Group of each trajectory of all ranks, (B,) int.
        kept: Whether the policy is trained on each trajectory, (B,) bool.
        tokens: Length of each trajectory, (B,) int.
        batches: Number of optimizer batches.
        ranks: Number of ranks.
    """
    ids, index = torch.unique(groups, return_inverse=True)
    is_kept = torch.zeros(len(ids), dtype=torch.long).index_add(0, index, kept.long()) > 0
    order = torch.argsort(is_kept.logical_not().to(torch.uint8), stable=True)
    batch_of_group = torch.empty(len(ids), dtype=torch.long)
    batch_of_group[order] = torch.arange(len(ids)) % batches
    batch_of, rank_of = batch_of_group[index], torch.zeros_like(groups)
    for batch in range(batches):
        for whether in (True, False):
            rows = torch.nonzero((batch_of == batch) & (kept == whether))[:, 0]
            rank_of[rows] = balance_by_tokens(tokens[rows], ranks)
    return Assignment(batch_of, rank_of)


def balance_by_tokens(tokens: Tensor, ranks: int) -> Tensor:
    """Assign trajectories, the longest first, each to the rank with the fewest tokens so far.

    Returns:
        The rank of each trajectory, (n,).
    """
    load, rank_of = [0] * ranks, torch.zeros_like(tokens)
    for row in torch.argsort(tokens, descending=True, stable=True).tolist():
        least = min(range(ranks), key=load.__getitem__)
        rank_of[row] = least
        load[least] += int(tokens[row])
    return rank_of


def optimizer_batches(own: TrainingBatch, count: int) -> list[TrainingBatch]:
    """Exchange trajectories between the ranks and return this rank's part of every optimizer batch.

    Every rank must call it. A part may be empty; its rows are sorted by trajectory id. All rows of
    a trajectory stay together.

    Args:
        own: The trajectories that this rank sampled.
        count: Number of optimizer batches.
    """
    rollout = own.rollout
    columns = torch.stack(
        (
            rollout.trajectory_ids,
            rollout.group_ids,
            rollout.kept.long(),
            rollout.attention_mask.sum(1),
        )
    ).cpu()
    ids, groups, kept, tokens = _by_trajectory(torch.cat(gather_objects(columns), dim=1))
    assignment = assign_batches(groups, kept > 0, tokens, count, world_size())
    if world_size() == 1:
        batch_of = assignment.batch[torch.searchsorted(ids, columns[0])]
    else:
        own = _exchange(own, assignment.rank[torch.searchsorted(ids, columns[0])])
        own_ids = own.rollout.trajectory_ids.cpu()
        batch_of = assignment.batch[torch.searchsorted(ids, own_ids)]
    return [own.rows(batch_of == batch) for batch in range(count)]


def _by_trajectory(table: Tensor) -> Tensor:
    """Merge the columns of rows of one trajectory, whose tokens are added up.

    Args:
        table: Trajectory id, group id, whether the policy is trained on it, and tokens; (4, B).

    Returns:
        The same for each trajectory, sorted by its id.
    """
    ids, of_row = torch.unique(table[0], return_inverse=True)
    merged = torch.zeros(4, len(ids), dtype=table.dtype)
    merged[:3, of_row] = table[:3]
    merged[3].index_add_(0, of_row, table[3])
    return merged


def regroup(own: TrainingBatch) -> TrainingBatch:
    """Exchange trajectories so that each group is on one rank, for estimators that compare members.

    Every rank must call it; a rank may get an empty batch.
    """
    if world_size() == 1:
        return own
    device = own.rollout.group_ids.device
    own = own.to("cpu")  # tensors from other ranks would arrive on those ranks' devices
    groups = own.rollout.group_ids
    all_groups = torch.unique(torch.cat(gather_objects(groups)))
    return _exchange(own, torch.searchsorted(all_groups, groups) % world_size()).to(device)


def _exchange(own: TrainingBatch, destination: Tensor) -> TrainingBatch:
    """Send every row to its destination rank, and return the rows of this rank."""
    me = rank()
    outgoing = {other: own.rows(destination == other) for other in set(destination.tolist()) - {me}}
    incoming = [sent[me] for sent in gather_objects(outgoing) if me in sent]
    rows = concatenate_batches([own.rows(destination == me), *incoming])
    # Rows of a trajectory come from one rank, in order.
    return rows.rows(torch.argsort(rows.rollout.trajectory_ids, stable=True))


def concatenate_batches(parts: Sequence[Batch]) -> Batch:
    """Concatenate batches along their rows, which are padded to the longest."""

    def concatenate(values: list[Any]) -> Any:
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

    names = [field.name for field in fields(parts[0])]
    return replace(
        parts[0], **{name: concatenate([getattr(part, name) for part in parts]) for name in names}
    )
