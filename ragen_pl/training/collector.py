"""The collector of a rollout: callbacks around each collection, selections, and packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from lightning.pytorch import Trainer

from ragen_pl.distributed.collectives import all_or_none
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.packing import pack
from ragen_pl.training.callback_checks.checked_selection import check_selections
from ragen_pl.training.dialogues import Dialogues
from ragen_pl.training.dynamic_sampling import CollectedGroups
from ragen_pl.training.learner import current_learner
from ragen_pl.training.trainer import refuse_double_metrics, rollout_callbacks
from ragen_pl.types import RolloutBatch, Sampling, Selection, TrajectoryGroup

_NO_SIGNAL = "dropped: all members have the same return, and dynamic sampling found no better group"


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
