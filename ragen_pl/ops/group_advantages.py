"""Group-relative advantages: trajectories compared with others from the same initial state.

A group consists of the trajectories with one id, all on one rank; members without a valid
trajectory are absent. Every estimator here gives exactly 0 to a member that is alone in its group,
and to all members of a group with equal returns.

Equal returns that are sums of unequal rewards differ by float32 rounding, which a division by the
standard deviation would blow up. Statistics are therefore computed in float64, and the standard
deviation is 0 if the returns differ by no more than rounding explains
(``ops.selection.has_nonzero_std``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.ops.advantages import Turns, reward_to_go
from ragen_pl.ops.selection import has_nonzero_std

_EPS = 1e-6
"""ε, which keeps the division by the standard deviation finite (as in GRPO's reference code)."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Size, mean and standard deviation of each entry's group, each (n,) float64."""

    count: Tensor
    mean: Tensor
    std: Tensor
    """Bessel-corrected; exactly 0 if the group's values are equal, or there is only one value."""


def group_statistics(values: Tensor, magnitudes: Tensor, ids: Tensor) -> GroupStatistics:
    """Return, for every entry, the statistics of the values that share its id, its own included.

    Args:
        values: (n,).
        magnitudes: (n,): the sum of absolute rewards behind each value, which bounds its rounding.
        ids: (n,) int, or (n, d) for ids of several parts.
    """
    values = values.double()
    unique, group = torch.unique(ids, dim=0, return_inverse=True)
    empty = values.new_zeros(len(unique))
    count = empty.index_add(0, group, torch.ones_like(values))
    mean = empty.index_add(0, group, values) / count
    square = empty.index_add(0, group, (values - mean[group]).square())
    varies = has_nonzero_std(values, magnitudes, group, len(unique))
    std = torch.where(varies, torch.sqrt(square / (count - 1).clamp(min=1)), 0.0)
    return GroupStatistics(count[group], mean[group], std[group])


def center_by_group(
    values: Tensor, magnitudes: Tensor, ids: Tensor, *, divide_by_std: bool
) -> Tensor:
    """Subtract the group's mean, and optionally divide by std + ε; (n,) float64.

    Args:
        values: (n,).
        magnitudes: As in ``group_statistics``.
        ids: As in ``group_statistics``.
        divide_by_std: Whether to divide.
    """
    group = group_statistics(values, magnitudes, ids)
    centered = torch.where(group.std > 0, values.double() - group.mean, 0.0)
    return centered / (group.std + _EPS) if divide_by_std else centered


def trajectory_returns(rewards: Tensor, mask: Tensor) -> Tensor:
    """Sum each row's rewards; (B,) float64."""
    return torch.where(mask, rewards, torch.zeros_like(rewards)).double().sum(1)


def broadcast_to_tokens(per_row: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    """Copy each trajectory's value to its sampled tokens; (B, T) of the type of ``like``."""
    return torch.where(mask, per_row[:, None].to(like.dtype), torch.zeros_like(like))


def grpo(rewards: Tensor, mask: Tensor, group_ids: Tensor, *, divide_by_std: bool) -> Tensor:
    """Compare each trajectory's return with its group's: Â = (R − mean) / (std + ε).

    RAGEN eq. 5 with the group's own statistics (Bessel-corrected), as in GRPO (2402.03300).

    Args:
        rewards: (B, T).
        mask: (B, T) bool.
        group_ids: (B,) int.
        divide_by_std: False is Dr. GRPO (2503.20783).

    Returns:
        (B, T), the same for all sampled tokens of a trajectory.
    """
    returns, magnitudes = (trajectory_returns(each, mask) for each in (rewards, rewards.abs()))
    centered = center_by_group(returns, magnitudes, group_ids, divide_by_std=divide_by_std)
    return broadcast_to_tokens(centered, mask, rewards)


def rloo(rewards: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    """Compare each trajectory's return with the mean of the *other* members' (2402.14740, eq. 8).

    Â = R − mean of the others = n / (n − 1) · (R − mean). The baseline is unbiased, because it does
    not include the member itself. Groups may have different sizes; a member that is alone has no
    baseline and gets 0.

    Returns:
        (B, T), the same for all sampled tokens of a trajectory.
    """
    returns, magnitudes = (trajectory_returns(each, mask) for each in (rewards, rewards.abs()))
    count = group_statistics(returns, magnitudes, group_ids).count
    scale = count / (count - 1).clamp(min=1)
    centered = center_by_group(returns, magnitudes, group_ids, divide_by_std=False)
    return broadcast_to_tokens(scale * centered, mask, rewards)


def step_advantages(
    rewards: Tensor,
    turns: Turns,
    group_ids: Tensor,
    state_ids: Tensor,
    *,
    turn_gamma: float,
    divide_by_std: bool,
) -> Tensor:
    """Compare the turns of a group that were taken in the same state (GiGPO, 2505.10978, §4.2).

    A turn's step return is R_k = Σ_{j ≥ k} γ_turn^{j − k} r_j (eq. 6 there). The turns of the
    group's trajectories in equal states (anchor states) form a step-level group, and
    Â^S = (R − mean) / (std + ε) within it (eq. 7). A turn that is alone in its step-level group
    gets 0.

    Args:
        rewards: (B, T).
        turns: The turn boundaries.
        group_ids: (B,) int.
        state_ids: (B, T) int: the state in which each token's turn was taken.
        turn_gamma: γ_turn, the discount per turn.
        divide_by_std: Whether to divide.

    Returns:
        (B, T), the same for all sampled tokens of a turn.
    """
    masked, at = torch.where(turns.mask, rewards, torch.zeros_like(rewards)).double(), turns.ends

    def to_go(per_token: Tensor) -> Tensor:
        of_turn = turns.sums(per_token).gather(1, turns.index)
        at_ends = torch.where(at, of_turn, torch.zeros_like(of_turn))
        return reward_to_go(at_ends, at, turn_gamma)[at]

    groups = group_ids[:, None].expand_as(state_ids)
    anchors = torch.stack([groups[at], state_ids[at]], 1)
    compared = torch.zeros_like(masked)
    compared[at] = center_by_group(
        to_go(masked), to_go(masked.abs()), anchors, divide_by_std=divide_by_std
    )
    per_token = turns.sums(compared).gather(1, turns.index).to(rewards.dtype)
    return torch.where(turns.mask, per_token, torch.zeros_like(rewards))
