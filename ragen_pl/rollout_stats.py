"""Average facts of a rollout over all ranks, and score its groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ragen_pl.distributed import gather_objects
from ragen_pl.ops.selection import group_std
from ragen_pl.types import Trajectory, TrajectoryGroup


@dataclass(slots=True)
class Averages:
    """Collect sums and counts by name, so that averages over ranks weigh every item alike."""

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, value: float, count: float = 1.0) -> None:
        """Add a value, or a sum of ``count`` values."""
        self.sums[name] += value
        self.counts[name] += count

    def means(self) -> dict[str, float]:
        """Average over all ranks; every rank must call it and gets the same answer."""
        total = Averages()
        for sums, counts in gather_objects((dict(self.sums), dict(self.counts))):
            for name, value in sums.items():
                total.add(name, value, counts[name])
        return {name: value / total.counts[name] for name, value in total.sums.items()}


def survivors(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """List the trajectories that may carry weight."""
    return [t for group in groups for t in group.trajectories if t.survived]


def group_scores(groups: Sequence[TrajectoryGroup]) -> list[float]:
    """Return each group's in-group standard deviation of the raw return; NaN where it has none."""
    if not groups:
        return []
    size = max(len(group.trajectories) for group in groups)
    returns = torch.zeros(len(groups), size, dtype=torch.float64)
    survived = torch.zeros(len(groups), size, dtype=torch.bool)
    for g, group in enumerate(groups):
        for n, trajectory in enumerate(group.trajectories):
            returns[g, n] = trajectory.total_reward
            survived[g, n] = trajectory.survived
    return [float(score) for score in group_std(returns, survived)]
