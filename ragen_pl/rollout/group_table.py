"""A table of the groups of all ranks, by which a rollout is filtered and watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.ops.selection import group_std, has_signal
from ragen_pl.types import Trajectory, TrajectoryGroup


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
    return (
        float(trajectory.is_trainable),
        trajectory.total_reward,
        trajectory.reward_magnitude,
        float(length),
        mean,
    )
