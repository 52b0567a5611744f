"""Average facts of a rollout over all ranks, and score its groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ragen_pl.distributed import gather_objects
from ragen_pl.errors import ConfigError
from ragen_pl.ops.scores import carries_signal, group_std
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


def check_played(groups: Sequence[TrajectoryGroup], env_name: str, consequence: str) -> None:
    """Refuse a collection in which no trajectory has a turn; every rank must call it.

    Args:
        env_name: Of the environment that was played.
        consequence: What cannot be done.

    Raises:
        ConfigError: on all ranks, when none has on any.
    """
    own = [trajectory for group in groups for trajectory in group.trajectories]
    # Those the environment failed last: they say more than a first prompt without room.
    lost = sorted((t for t in own if not t.survived), key=lambda t: not t.counts)
    last = lost[-1] if lost else None
    parts = gather_objects(
        (len(own), len(lost), None if last is None else (last.counts, last.error))
    )
    total, failed = sum(part[0] for part in parts), sum(part[1] for part in parts)
    reasons = sorted((part[2] for part in parts if part[2] is not None), key=lambda r: not r[0])
    if failed < total or not reasons:
        return
    counts, error = reasons[-1]
    if counts:  # a key of the configuration is wrong
        raise ConfigError(error)
    raise ConfigError(
        f"environment {env_name} failed in every one of {total} trajectories, so that there is "
        f"nothing to {consequence}\n  last: {error}\n"
        "  mend the environment (the warnings above name its other errors); --ckpt_path last then "
        "goes on from the last checkpoint"
    )


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Lay out the groups of all ranks, by identity, so that every rank decides alike.

    Each tensor is (G, N); groups of fewer members are filled up with members that did not survive.
    """

    group_ids: tuple[int, ...]
    """Ascending."""
    survived: Tensor
    """Bool."""
    returns: Tensor
    """Float64: the sum of all reward terms."""
    sizes: Tensor
    """Float64: the sum of the turns' absolute rewards, which bounds what rounding leaves of equal
    returns."""
    lengths: Tensor
    """Float64: sampled tokens of the trajectory."""
    entropies: Tensor
    """Float64: mean over the sampled tokens, in nats."""

    @classmethod
    def gather(cls, groups: Sequence[TrajectoryGroup]) -> GroupTable:
        """Collect this rank's groups and the others'; every rank must call it."""
        own = [(group.group_id, [_facts(t) for t in group.trajectories]) for group in groups]
        rows = sorted((row for part in gather_objects(own) for row in part), key=lambda row: row[0])
        size = max((len(facts) for _, facts in rows), default=0)
        table = torch.zeros(len(rows), size, 5, dtype=torch.float64)
        for row, (_, facts) in zip(table, rows, strict=True):
            row[: len(facts)] = torch.tensor(facts, dtype=torch.float64)
        survived, returns, sizes, lengths, entropies = table.unbind(dim=2)
        ids = tuple(group_id for group_id, _ in rows)
        return cls(ids, survived > 0, returns, sizes, lengths, entropies)

    @property
    def signal(self) -> Tensor:
        """(G,) bool: which groups' members fared differently."""
        return carries_signal(self.returns, self.sizes, self.survived)

    @property
    def std(self) -> Tensor:
        """(G,) float64: standard deviation of the returns, 0 without signal; NaN where fewer than
        two members survived."""
        return group_std(self.returns, self.sizes, self.survived)


def _facts(trajectory: Trajectory) -> tuple[float, float, float, float, float]:
    entropies = [h for turn in trajectory.turns for h in turn.completion.entropy_estimates]
    length = len(entropies)
    mean = sum(entropies) / max(1, length)
    size = sum(abs(turn.reward) for turn in trajectory.turns)
    return float(trajectory.survived), trajectory.total_reward, size, float(length), mean
