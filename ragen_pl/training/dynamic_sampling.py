"""Dynamic sampling: an iteration collects once, or until enough groups have signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import T, gather_objects, rank, world_size
from ragen_pl.ops.selection import fill_with_signal
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.seeds import MAX_COLLECTIONS
from ragen_pl.types import TrajectoryGroup

CollectGroups = Callable[[Sequence[GroupSeed]], list[TrajectoryGroup]]
"""Function that collects one group per given seed."""


@dataclass(frozen=True)
class DynamicSampling:
    """Further collections, from new seeds, while too few groups have signal (DAPO,
    arXiv 2503.14476, section 3.2). A group has no signal if all its members have the same return,
    up to rounding.

    Args:
        max_collections: Maximum collections per iteration. If groups without signal must fill up
            the batch after the last one, they are left out of the policy loss.
    """

    max_collections: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.max_collections <= MAX_COLLECTIONS:
            raise ValueError(
                f"dynamic_sampling.max_collections is {self.max_collections}; it must be from 2 to "
                f"{MAX_COLLECTIONS} (dynamic_sampling null collects once)"
            )

    def check(self, group_size: int) -> None:
        """Raise an error for groups of one trajectory, which never have signal.

        Raises:
            ValueError: when ``group_size`` is 1.
        """
        if group_size == 1:
            raise ValueError(
                "rollout.group_size is 1, but dynamic_sampling needs groups whose members' returns "
                "differ: set rollout.group_size to 2 or more, or dynamic_sampling to null"
            )


@dataclass(frozen=True, slots=True)
class CollectedGroups:
    """This rank's groups of an iteration."""

    groups: list[TrajectoryGroup]
    trains_policy: list[bool]
    """Whether each group enters the policy loss."""


def collect_groups(
    collect_own: CollectGroups,
    seeds_of: Callable[[int], list[GroupSeed]],
    dynamic: DynamicSampling | None,
) -> CollectedGroups:
    """Collect groups until enough have signal, or ``dynamic`` allows no further collection.

    Every rank makes the same decisions. The result has as many groups as one collection: the first
    ones with signal and, if these are too few, the first ones without; last those of which no
    trajectory is trainable, as after a failure of the environment. Each rank gets an even share of
    it.

    Args:
        collect_own: Function that is called with this rank's share of each collection's seeds.
        seeds_of: Function that returns the seeds of the n-th collection of the iteration, over all
            ranks.
        dynamic: Limits of dynamic sampling; None for exactly one collection, all of whose groups
            enter the policy loss.
    """
    wanted = seeds_of(0)
    own = collect_own(_rank_share(wanted))
    if dynamic is None:
        return CollectedGroups(own, [True] * len(own))
    for collection in range(1, dynamic.max_collections + 1):
        table = GroupTable.gather(own)
        signal = table.signal
        has_enough = all(int(signal[places].sum()) >= n for places, n in _by_env(table, wanted))
        if has_enough or collection == dynamic.max_collections:
            break
        own = own + collect_own(_rank_share(seeds_of(collection)))
    are_chosen, sound = torch.zeros_like(signal), table.valid.any(dim=1)
    for places, count in _by_env(table, wanted):
        are_chosen[places] = fill_with_signal(signal[places], sound[places], count)
    chosen = are_chosen.tolist()
    has_signal = dict(zip(table.group_ids, signal.tolist(), strict=True))
    chosen_ids = {
        group_id for group_id, is_chosen in zip(table.group_ids, chosen, strict=True) if is_chosen
    }
    parts = gather_objects([group for group in own if group.group_id in chosen_ids])
    gathered = sorted((g for part in parts for g in part), key=lambda group: group.group_id)
    groups = _rank_share(gathered)
    return CollectedGroups(groups, [has_signal[group.group_id] for group in groups])


def _by_env(table: GroupTable, wanted: Sequence[GroupSeed]) -> list[tuple[Tensor, int]]:
    """Return, for each environment, the places of its groups in a table and the number of groups
    that are wanted of it."""
    counts = Counter(seed.env for seed in wanted)
    return [(table.places(env), count) for env, count in counts.items()]


def _rank_share(items: Sequence[T]) -> list[T]:
    return list(items[rank() :: world_size()])
