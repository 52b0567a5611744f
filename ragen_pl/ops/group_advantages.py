"""Estimate advantages by comparing trajectories that started from one state.

A group is the trajectories with one id; a group lies whole on one rank, and members that were lost
are simply absent. What defines an estimate when there is little to compare holds for all of them: a
member that is alone, and members that all earned the same, get exactly 0.

Equal returns that are sums of unequal rewards differ by what float32 leaves of them, which a
division by the spread would blow up: statistics are computed in float64, and what rounding explains
counts as no spread (``ops.scores.differ``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.ops.advantages import reward_to_go
from ragen_pl.ops.selection import differ

_EPS = 1e-6
"""Keeps the division by a spread finite (GRPO's reference implementations use the same)."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Describe the group of each entry, each (n,) float64."""

    count: Tensor
    mean: Tensor
    std: Tensor
    """Bessel-corrected; exactly 0 where they do not differ, as where the entry is alone."""


def peers(values: Tensor, sizes: Tensor, ids: Tensor) -> Peers:
    """Summarize, for every entry, the values that share its id, its own included.

    Args:
        values: (n,).
        sizes: (n,): the absolute rewards that each value was summed from, which bound its rounding.
        ids: (n,) int, or (n, d) for ids of several parts.
    """
    values = values.double()
    unique, group = torch.unique(ids, dim=0, return_inverse=True)
    empty = values.new_zeros(len(unique))
    count = empty.index_add(0, group, torch.ones_like(values))
    mean = empty.index_add(0, group, values) / count
    square = empty.index_add(0, group, (values - mean[group]).square())
    varies = differ(values, sizes, group, len(unique))
    std = torch.where(varies, torch.sqrt(square / (count - 1).clamp(min=1)), 0.0)
    return Peers(count[group], mean[group], std[group])


def relative(values: Tensor, sizes: Tensor, ids: Tensor, *, divide_by_std: bool) -> Tensor:
    """Compare each value with its group's: x − mean, divided by std + ε where asked; (n,) float64.

    Args:
        values: (n,).
        sizes: As in ``peers``.
        ids: As in ``peers``.
        divide_by_std: Whether to divide.
    """
    group = peers(values, sizes, ids)
    centerd = torch.where(group.std > 0, values.double() - group.mean, 0.0)
    return centerd / (group.std + _EPS) if divide_by_std else centerd


def trajectory_returns(rewards: Tensor, mask: Tensor) -> Tensor:
    """Sum each row's rewards; (B,) float64."""
    return torch.where(mask, rewards, torch.zeros_like(rewards)).double().sum(1)


def spread(per_row: Tensor, mask: Tensor, like: Tensor) -> Tensor:
    """Give every sampled token its trajectory's number; (B, T) of the type of ``like``."""
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
    returns, sizes = (trajectory_returns(each, mask) for each in (rewards, rewards.abs()))
    return spread(relative(returns, sizes, group_ids, divide_by_std=divide_by_std), mask, rewards)


def rloo(rewards: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    """Compare each trajectory's return with the mean of the *other* members' (2402.14740, eq. 8).

    Â = R − mean of the others = n / (n − 1) · (R − mean): an unbiased baseline, as no member is in
    its own. Groups may differ in size; a member that is alone has no baseline and gets 0.

    Returns:
        (B, T), the same for all sampled tokens of a trajectory.
    """
    returns, sizes = (trajectory_returns(each, mask) for each in (rewards, rewards.abs()))
    count = peers(returns, sizes, group_ids).count
    share = count / (count - 1).clamp(min=1)
    compared = relative(returns, sizes, group_ids, divide_by_std=False)
    return spread(share * compared, mask, rewards)


@dataclass(frozen=True, slots=True)
class Steps:
    """Say which turns of a batch can be compared with one another."""

    turn_index: Tensor
    """(B, T) int: which turn a token belongs to."""
    turn_ends: Tensor
    """(B, T) bool: the last sampled token of each turn."""
    state_ids: Tensor
    """(B, T) int: the state in which the token's turn was taken."""


def step_advantages(
    rewards: Tensor,
    mask: Tensor,
    group_ids: Tensor,
    steps: Steps,
    *,
    turn_gamma: float,
    divide_by_std: bool,
) -> Tensor:
    """Compare turns that were taken in one state, within one group (GiGPO, 2505.10978, §4.2).

    A turn's step return is R_k = Σ_{j ≥ k} γ_turn^{j − k} r_j (eq. 6 there); turns of the group's
    trajectories in equal states are its peers (the anchor states), and Â^S = (R − mean) / (std + ε)
    among them (eq. 7). A state that nobody else met gives 0.

    Returns:
        (B, T), the same for all sampled tokens of a turn.
    """
    exact = torch.where(mask, rewards, torch.zeros_like(rewards)).double()
    length = int(steps.turn_index.max()) + 1 if steps.turn_index.numel() else 0
    at = steps.turn_ends

    def to_go(per_token: Tensor) -> Tensor:
        sums = exact.new_zeros(len(exact), length).scatter_add(1, steps.turn_index, per_token)
        of_turn = torch.where(at, sums.gather(1, steps.turn_index), torch.zeros_like(exact))
        return reward_to_go(of_turn, at, turn_gamma)[at]

    groups = group_ids[:, None].expand_as(steps.state_ids)
    places = torch.stack([groups[at], steps.state_ids[at]], 1)
    compared = relative(to_go(exact), to_go(exact.abs()), places, divide_by_std=divide_by_std)
    per_turn = exact.new_zeros(len(exact), length).index_put(
        (torch.nonzero(at)[:, 0], steps.turn_index[at]), compared
    )
    per_token = per_turn.gather(1, steps.turn_index).to(rewards.dtype)
    return torch.where(mask, per_token, torch.zeros_like(rewards))
