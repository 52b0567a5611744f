"""The sampled tokens of trajectories of several training sequences, joined to one row each."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from ragen_pl.types import RolloutBatch


@dataclass(frozen=True, slots=True)
class TrajectoryLayout:
    """The place of every sampled token of B rows in R rows, one for each trajectory."""

    places: Tensor
    """(n,) int: indices of the sampled tokens in the flattened (B, T) rows, along trajectories."""
    trajectory: Tensor
    """(n,) int: each token's row among the R trajectories."""
    column: Tensor
    """(n,) int: each token's place in that row."""
    first_rows: Tensor
    """(R,) int: the row among B in which each trajectory begins."""
    shape: tuple[int, int]
    """B and T."""

    @classmethod
    def of(cls, rollout: RolloutBatch) -> Self | None:
        """Return the layout of a batch; None if its rows are trajectories already."""
        if not bool(rollout.sequence_index.any()):
            return None
        mask = rollout.loss_mask
        order = torch.argsort(rollout.sequence_index, stable=True)
        order = order[torch.argsort(rollout.trajectory_ids[order], stable=True)]
        ids, of_row = torch.unique_consecutive(rollout.trajectory_ids[order], return_inverse=True)
        row, at = torch.nonzero(mask[order]).unbind(1)
        trajectory = of_row[row]
        counts = torch.bincount(trajectory, minlength=len(ids))
        column = torch.arange(len(row), device=mask.device)
        column = column - (counts.cumsum(0) - counts)[trajectory]
        return cls(
            places=order[row] * mask.shape[1] + at,
            trajectory=trajectory,
            column=column,
            first_rows=order[rollout.sequence_index[order] == 0],
            shape=(mask.shape[0], mask.shape[1]),
        )

    def joined(self, values: Tensor) -> Tensor:
        """Move values at sampled tokens, (B, T), to the trajectories' rows, (R, U)."""
        width = int(self.column.max()) + 1
        result = values.new_zeros(len(self.first_rows), width)
        result[self.trajectory, self.column] = values.flatten()[self.places]
        return result

    def divided(self, values: Tensor) -> Tensor:
        """Move values of trajectories, (R, U), back to the training sequences, (B, T)."""
        result = values.new_zeros(self.shape).flatten()
        result[self.places] = values[self.trajectory, self.column]
        return result.view(self.shape)

    def trajectories(self, rollout: RolloutBatch) -> RolloutBatch:
        """Return a batch with one row of nothing but sampled tokens for each trajectory."""
        changed: dict[str, Any] = {}
        for field in fields(rollout):
            value = getattr(rollout, field.name)
            if isinstance(value, Tensor):
                is_per_token = value.ndim == 2
                changed[field.name] = self.joined(value) if is_per_token else value[self.first_rows]
        return replace(rollout, **changed)
