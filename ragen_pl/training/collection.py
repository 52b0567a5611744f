"""Collection of an iteration's groups: once, or with dynamic sampling until enough have signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from ragen_pl.distributed.collectives import T, all_or_none, gather_objects, rank, world_size
from ragen_pl.ops.selection import fill_with_signal
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.seeds import MAX_COLLECTIONS
from ragen_pl.training.checked_selection import check_selections
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.learner import current_learner
from ragen_pl.training.trainer import refuse_double_metrics, rollout_callbacks
from ragen_pl.types import RolloutBatch, Sampling, Selection, TrajectoryGroup

_NO_SIGNAL = "dropped: all members have the same return, and dynamic sampling found no better group"
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
    ones with signal and, if these are too few, the first ones without. Each rank gets an even share
    of it.

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
    are_chosen = torch.zeros_like(signal)
    for places, count in _by_env(table, wanted):
        are_chosen[places] = fill_with_signal(signal[places], count)
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


class Collector:
    """Collections of one iteration, with the rollout callbacks around them.

    Args:
        trainer: The trainer, with the learner and the callbacks.
        dialogues: The dialogues, with the environments and the limits of a trajectory.
    """

    def __init__(self, trainer: Trainer, dialogues: Dialogues) -> None:
        self.trainer, self.dialogues = trainer, dialogues
        self.callbacks = list(rollout_callbacks(trainer))
        self.played: list[TrajectoryGroup] = []
        """Every group that this rank played, those that dynamic sampling drops among them."""
        self._num_trajectories = 0
        self._has_started = False

    def collect(self, seeds: Sequence[GroupSeed]) -> list[TrajectoryGroup]:
        """Collect this rank's groups of one collection, with the learner's current weights.

        The first call also runs the ``on_rollout_start`` hooks.
        """
        trainer, module = self.trainer, self.trainer.lightning_module
        learner = current_learner(trainer)
        iteration, chats = learner.iteration, self.dialogues.chats(learner)
        group_size = self.dialogues.rollout.group_size
        before, size = self._num_trajectories, len(seeds) * group_size
        if not self._has_started:
            self._has_started = True
            for callback in self.callbacks:
                callback.begin_iteration(iteration)
                callback.on_rollout_start(trainer, module, iteration, size)

        played: list[TrajectoryGroup] = []

        def progress(finished: int, _: int) -> None:
            done = before + len(played) * group_size + finished
            for callback in self.callbacks:
                callback.on_rollout_progress(trainer, module, done, before + size)

        for name, env in self.dialogues.envs.items():
            own = [seed for seed in seeds if seed.env == name]
            if not own:
                continue
            rollout = self.dialogues.rollout_in[name]
            played += collect(
                env,
                own,
                chats[name],
                learner.generate,
                rollout,
                iteration=iteration,
                sampling=Sampling(rollout.temperature, rollout.max_response_tokens),
                progress=progress,
            )
        groups = sorted(played, key=lambda group: group.group_id)
        self._num_trajectories += size
        self.played += groups
        for callback in self.callbacks:
            callback.on_collection_end(trainer, module, groups)
        return groups

    def policy_weights(self, collected: CollectedGroups) -> list[list[float]]:
        """Return each trajectory's weight in the policy loss: the product of all callbacks'
        selections; every rank must call it.

        Raises:
            ConfigError: on all ranks, if what a callback returned on one is no selection of these
                groups.
        """
        trainer, groups = self.trainer, collected.groups
        weights = [
            [float(trains_policy)] * len(group.trajectories)
            for group, trains_policy in zip(groups, collected.trains_policy, strict=True)
        ]
        reasons = list[list[str]]([] for _ in groups)
        given = [
            (callback, callback.on_rollout_end(trainer, trainer.lightning_module, list(groups)))
            for callback in self.callbacks
        ]
        all_or_none(lambda: check_selections(given, groups))
        for _, selection in given:
            if selection is not None:
                weights = [
                    [a * b for a, b in zip(old, new, strict=True)]
                    for old, new in zip(weights, selection.weights, strict=True)
                ]
                if selection.reasons:
                    for said, reason in zip(reasons, selection.reasons, strict=True):
                        said.append(reason)
        told = tuple(
            "; ".join(said) if trains_policy else _NO_SIGNAL
            for said, trains_policy in zip(reasons, collected.trains_policy, strict=True)
        )
        whole = Selection(tuple(map(tuple, weights)), told)
        for callback in self.callbacks:
            callback.on_selection(trainer, trainer.lightning_module, list(groups), whole)
        all_or_none(lambda: refuse_double_metrics(trainer))
        return weights

    def pack(
        self,
        collected: CollectedGroups,
        weights: Sequence[Sequence[float]],
        reward_scales: Mapping[str, float],
    ) -> RolloutBatch:
        """Pack this rank's trainable trajectories with their policy weights.

        Args:
            collected: The groups.
            weights: Policy weight of each trajectory, by group.
            reward_scales: Factors of the rewards, by environment.
        """
        pairs = [
            (trajectory, weight)
            for group, row in zip(collected.groups, weights, strict=True)
            for trajectory, weight in zip(group.trajectories, row, strict=True)
            if trajectory.is_trainable
        ]
        rollout = pack(
            [trajectory for trajectory, _ in pairs],
            weights=[weight for _, weight in pairs],
            temperature=self.dialogues.rollout.temperature,
        )
        env_of = {group.group_id: group.env for group in collected.groups}
        return scaled_by_env(rollout, env_of, reward_scales)


def scaled_by_env(
    rollout: RolloutBatch, env_of: Mapping[int, str], reward_scales: Mapping[str, float]
) -> RolloutBatch:
    """Return a rollout whose rows know their environment, and whose rewards have its scale.

    Args:
        rollout: The packed trajectories.
        env_of: The environment of each group, by group id.
        reward_scales: Factors of the rewards, by environment.
    """
    names = tuple(reward_scales)
    envs = [env_of[group_id] for group_id in rollout.group_ids.tolist()]
    factors = torch.tensor([reward_scales[env] for env in envs], dtype=rollout.rewards.dtype)
    rewards = {
        name: getattr(rollout, name) * factors[:, None]
        for name in ("rewards", "outcome_rewards", "thought_rewards")
    }
    env_ids = torch.tensor([names.index(env) for env in envs], dtype=torch.long)
    return replace(rollout, **rewards, env_ids=env_ids, env_names=names)
