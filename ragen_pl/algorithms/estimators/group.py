"""Advantage estimators that compare the members of a group."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ragen_pl.algorithms.estimators.base import WithoutCritic, check_ranges
from ragen_pl.distributed.collectives import all_reduce_sum
from ragen_pl.ops import group_advantages
from ragen_pl.ops.advantages import Turns
from ragen_pl.ops.masked import whiten
from ragen_pl.types import RolloutBatch


class _GroupRelative(WithoutCritic):
    """An estimator that compares members of a group, and so needs at least two."""

    compares_members = True


@dataclass(frozen=True)
class ReinforcePlusPlusBaseline(_GroupRelative):
    """REINFORCE++-baseline: return minus group mean, whitened over all kept tokens (2501.03262)."""

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        mask = rollout.loss_mask
        centered = group_advantages.grpo(rewards, mask, rollout.group_ids, divide_by_std=False)
        return whiten(centered, rollout.kept_tokens, all_reduce_sum)


@dataclass(frozen=True)
class GRPO(_GroupRelative):
    """GRPO: return minus group mean, divided by the group's standard deviation (2402.03300)."""

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        mask = rollout.loss_mask
        return group_advantages.grpo(rewards, mask, rollout.group_ids, divide_by_std=True)


@dataclass(frozen=True)
class _ScaledGroupRelative(_GroupRelative):
    """An estimator whose advantages are proportional to the rewards.

    Args:
        reward_scale: Factor of the rewards, which should bring advantages near 1; it sets their
            weight relative to entropy and KL.
    """

    reward_scale: float = 0.1

    def __post_init__(self) -> None:
        check_ranges(self, positive=("reward_scale",))


@dataclass(frozen=True)
class DrGRPO(_ScaledGroupRelative):
    """Dr GRPO: return minus group mean, without division (2503.20783)."""

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        rewards, mask = rewards * self.reward_scale, rollout.loss_mask
        return group_advantages.grpo(rewards, mask, rollout.group_ids, divide_by_std=False)


@dataclass(frozen=True)
class RLOO(_ScaledGroupRelative):
    """RLOO: return minus the mean return of the group's other members (2402.14740)."""

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        rewards = rewards * self.reward_scale
        return group_advantages.rloo(rewards, rollout.loss_mask, rollout.group_ids)


@dataclass(frozen=True)
class GiGPO(_GroupRelative):
    """GiGPO: group-relative advantages of trajectories and of turns in the same state (2505.10978).

    Args:
        turn_gamma: Discount per turn in the return from a turn on.
        step_weight: Weight of the advantages of turns; 0 leaves those of trajectories.
        divide_by_std: Whether both advantages are divided by their group's standard deviation.
    """

    turn_gamma: float = 0.95
    step_weight: float = 1.0
    divide_by_std: bool = True

    def __post_init__(self) -> None:
        check_ranges(self, unit_interval=("turn_gamma",))
        if self.step_weight < 0:
            raise ValueError(
                f"advantage.step_weight is {self.step_weight}; it must not be negative"
            )

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        mask, groups, divide = rollout.loss_mask, rollout.group_ids, self.divide_by_std
        turns = Turns(mask, rollout.turn_index, rollout.turn_ends)
        of_trajectory = group_advantages.grpo(rewards, mask, groups, divide_by_std=divide)
        of_turn = group_advantages.step_advantages(
            rewards,
            turns,
            groups,
            rollout.state_ids,
            turn_gamma=self.turn_gamma,
            divide_by_std=divide,
        )
        return of_trajectory + self.step_weight * of_turn
