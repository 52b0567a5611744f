"""Statistics of a rollout over all ranks: averages, and a table of its groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.ops.selection import group_std, has_signal
from ragen_pl.types import Trajectory, TrajectoryGroup

_ROUNDING = 1e-9
"""Standard deviation, relative to the returns, that rounding alone can cause."""


class RankMeans:
    """Means by name over all ranks, in which every item weighs the same unless a weight is given
    (``MeanMetric``).

    Items are kept as plain numbers until the means are taken, because one update of a
    ``MeanMetric`` costs as much as a turn.
    """

    def __init__(self) -> None:
        self._items: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, name: str, value: float, count: float = 1.0, weight: float = 1.0) -> None:
        """Add a value, or a sum of ``count`` values, each of which weighs ``weight``."""
        if count:
            self._items[name].append((value / count, count * weight))

    def means(self) -> dict[str, float]:
        """Return the means over all ranks; every rank must call it, and gets the same ones."""
        own = {name: _mean(items) for name, items in self._items.items()}
        of_ranks: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for part in gather_objects(own):  # once for all names, since ranks may have different ones
            for name, item in part.items():
                of_ranks[name].append(item)
        return {name: _mean(items)[0] for name, items in of_ranks.items()}


def _mean(items: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of (value, weight) pairs and their total weight."""
    # Not synchronized by itself: ranks may have different names, so ``means`` gathers them at once.
    # NaN must stay NaN, but "disable" would drop the weights (torchmetrics 1.9).
    metric = MeanMetric(nan_strategy=math.nan, sync_on_compute=False).set_dtype(torch.float64)
    values, weights = torch.tensor(items, dtype=torch.float64).unbind(1)
    metric.update(values, weights)
    return float(metric.compute()), float(weights.sum())


def trainable_trajectories(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    """List the trajectories that may enter a loss."""
    return [t for group in groups for t in group.trajectories if t.is_trainable]


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of trajectories and of their successes, also with weights."""

    successes: float
    trials: float
    gains: float = 0.0
    """Sum of the trajectories' learning gains (``learning_gains``)."""
    age: int = 0
    """Iterations since the last of them was played."""

    @property
    def success(self) -> float:
        """The success rate; there must be trials."""
        return self.successes / self.trials

    @property
    def gain(self) -> float:
        """The mean learning gain; there must be trials."""
        return self.gains / self.trials

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.successes + other.successes,
            self.trials + other.trials,
            self.gains + other.gains,
            min(self.age, other.age),
        )

    def older(self, decay: float = 1.0) -> Tally:
        """Return the tally an iteration later, every trajectory weighted by ``decay``."""
        return Tally(decay * self.successes, decay * self.trials, decay * self.gains, self.age + 1)


Tallies = Mapping[str, Tally]
"""Tallies by difficulty, or by initial state."""


def tally_by_difficulty(groups: Sequence[TrajectoryGroup]) -> Tallies:
    """Count trajectories and successes by difficulty, without those whose environment failed."""
    return sum_tallies(
        {trajectory.difficulty: Tally(float(trajectory.success), 1.0, gain)}
        for group in groups
        for trajectory, gain in _counted(group)
    )


def tally_by_start(groups: Sequence[TrajectoryGroup]) -> Tallies:
    """Count as ``tally_by_difficulty``, but by the seed of the start."""
    return sum_tallies(
        {str(group.seed): Tally(float(trajectory.success), 1.0, gain)}
        for group in groups
        for trajectory, gain in _counted(group)
    )


def _counted(group: TrajectoryGroup) -> Iterator[tuple[Trajectory, float]]:
    """Iterate over the members that count, with their learning gains."""
    members = [trajectory for trajectory in group.trajectories if trajectory.counts]
    yield from zip(members, learning_gains([m.total_reward for m in members]), strict=True)


def learning_gains(returns: Sequence[float]) -> list[float]:
    """Return each trajectory's absolute advantage: |return − mean| / standard deviation of the
    group, as a proxy for what can be learned from it (SEC, arXiv 2505.14970); zeros where the
    returns are equal, up to rounding. Their mean is at most 1.
    """
    if not returns:
        return []
    mean = fmean(returns)
    std = math.sqrt(fmean((each - mean) ** 2 for each in returns))
    if std <= _ROUNDING * (1.0 + max(map(abs, returns))):
        return [0.0] * len(returns)
    return [abs(each - mean) / std for each in returns]


def sum_tallies(parts: Iterable[Tallies]) -> Tallies:
    """Return the sums by difficulty, sorted by name."""
    total: dict[str, Tally] = {}
    for part in parts:
        for name, tally in part.items():
            total[name] = total[name] + tally if name in total else tally
    return dict(sorted(total.items()))


@dataclass(frozen=True, slots=True)
class GroupTable:
    """The groups of all ranks, in the order of their ids, so that all ranks decide alike.

    Each tensor but ``weights`` is (G, N); smaller groups are padded with members that are not
    valid.
    """

    group_ids: tuple[int, ...]
    """Ascending."""
    valid: Tensor
    """Bool: whether the member is trainable."""
    returns: Tensor
    """Float64: the sum of all reward terms."""
    magnitudes: Tensor
    """Float64: the sum of the turns' absolute rewards; it bounds the rounding error of equal
    returns."""
    lengths: Tensor
    """Float64: sampled tokens of the trajectory."""
    entropies: Tensor
    """Float64: mean over the sampled tokens, in nats."""
    weights: Tensor
    """(G,) float64: ``TrajectoryGroup.weight``."""
    envs: tuple[str, ...] = ()
    """``TrajectoryGroup.env`` of each group; empty without a mixture."""

    @classmethod
    def gather(cls, groups: Sequence[TrajectoryGroup]) -> GroupTable:
        """Gather the groups of all ranks; every rank must call it."""
        own = [
            (group.group_id, group.weight, group.env, [_facts(t) for t in group.trajectories])
            for group in groups
        ]
        rows = sorted((row for part in gather_objects(own) for row in part), key=lambda row: row[0])
        size = max((len(facts) for *_, facts in rows), default=0)
        table = torch.zeros(len(rows), size, 5, dtype=torch.float64)
        for row, (*_, facts) in zip(table, rows, strict=True):
            row[: len(facts)] = torch.tensor(facts, dtype=torch.float64)
        valid, returns, magnitudes, lengths, entropies = table.unbind(dim=2)
        ids = tuple(group_id for group_id, *_ in rows)
        weights = torch.tensor([weight for _, weight, *_ in rows], dtype=torch.float64)
        names = tuple(env for _, _, env, _ in rows)
        envs = names if any(names) else ()
        return cls(ids, valid > 0, returns, magnitudes, lengths, entropies, weights, envs)

    @property
    def env_names(self) -> tuple[str, ...]:
        """The environments of the mixture that have groups; ``("",)`` without a mixture."""
        return tuple(sorted(set(self.envs))) or ("",)

    def places(self, env: str) -> Tensor:
        """Return the places, ascending, of the groups of an environment; of all without a
        mixture."""
        names = self.envs or ("",) * len(self.group_ids)
        return torch.tensor([at for at, name in enumerate(names) if name == env], dtype=torch.long)

    @property
    def signal(self) -> Tensor:
        """(G,) bool: which groups have members with different returns."""
        return has_signal(self.returns, self.magnitudes, self.valid)

    @property
    def std(self) -> Tensor:
        """(G,) float64: standard deviation of the returns, 0 without signal; NaN with fewer than
        two valid members."""
        return group_std(self.returns, self.magnitudes, self.valid)


def _facts(trajectory: Trajectory) -> tuple[float, float, float, float, float]:
    entropies = [h for answer in trajectory.answers for h in answer.completion.entropy_estimates]
    length = len(entropies)
    mean = sum(entropies) / max(1, length)
    magnitude = sum(abs(turn.reward) for turn in trajectory.turns)
    return float(trajectory.is_trainable), trajectory.total_reward, magnitude, float(length), mean
