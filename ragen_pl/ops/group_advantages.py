"""Estimate advantages by comparing trajectories that started from one state.

A group is the trajectories with one id; a group lies whole on one rank, and members that were lost
are simply absent. What defines an estimate when there is little to compare holds for all of them: a
member that is alone, and members that all earned the same, get exactly 0.

Equal returns that are sums of unequal rewards differ by what float32 leaves of them, which a
division by the spread would blow up: statistics are computed in float64, and a spread that rounding
explains counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.ops.advantages import reward_to_go

_EPS = 1e-6
"""Keeps the division by a spread finite (GRPO's reference implementations use the same)."""
_ROUNDING = 1e-6
"""Spreads up to this share of what the returns were summed from count as none."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Describe the group of each entry, each (n,) float64."""

    count: Tensor
    mean: Tensor
    std: Tensor
    """Bessel-corrected; 0 where the entry is alone."""


def peers(values: Tensor, ids: Tensor) -> Peers:
    """Summarise, for every entry, the values that share its id, its own included.

    Args:
        values: (n,).
        ids: (n,) int, or (n, d) for ids of several parts.
    """
    values = values.double()
    unique, group = torch.unique(ids, dim=0, return_inverse=True)
    empty = values.new_zeros(len(unique))
    count = empty.index_add(0, group, torch.ones_like(values))
    mean = empty.index_add(0, group, values) / count
    square = empty.index_add(0, group, (values - mean[group]).square())
    std = torch.sqrt(square / (count - 1).clamp(min=1))
    return Peers(count[group], mean[group], std[group])


def relative(values: Tensor, ids: Tensor, sizes: Tensor, *, divide_by_std: bool) -> Tensor:
    """Compare each value with its group's: x − mean, divided by std + ε where asked; (n,) float64.

    Args:
        values: (n,).
        ids: As in ``peers``.
        sizes: (n,): the absolute rewards that each value was summed from, which bound its rounding.
        divide_by_std: Whether to divide.
    """
    group = peers(values, ids)
    differ = group.std > _ROUNDING * peers(sizes, ids).mean
    centred = torch.where(differ, values.double() - group.mean, 0.0)
    return centred / (group.std + _EPS) if divide_by_std else centred


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
    return spread(relative(returns, group_ids, sizes, divide_by_std=divide_by_std), mask, rewards)


def rloo(rewards: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    """Compare each trajectory's return with the mean of the *other* members' (2402.14740, eq. 8).

    Â = R − mean of the others = n / (n − 1) · (R − mean): an unbiased baseline, as no member is in
    its own. Groups may differ in size; a member that is alone has no baseline and gets 0.

    Returns:
        (B, T), the same for all sampled tokens of a trajectory.
    """
    returns, sizes = (trajectory_returns(each, mask) for each in (rewards, rewards.abs()))
    count = peers(returns, group_ids).count
    share = count / (count - 1).clamp(min=1)
    compared = relative(returns, group_ids, sizes, divide_by_std=False)
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
    zero = torch.zeros_like(rewards)
    rewards = torch.where(mask, rewards, zero)
    size = int(steps.turn_index.max()) + 1 if steps.turn_index.numel() else 0
    sums = rewards.new_zeros(len(rewards), size).scatter_add(1, steps.turn_index, rewards)
    of_turn = torch.where(steps.turn_ends, sums.gather(1, steps.turn_index), zero)
    to_go = reward_to_go(of_turn, steps.turn_ends, turn_gamma)
    at = steps.turn_ends
    groups = group_ids[:, None].expand_as(steps.state_ids)
    places = torch.stack([groups[at], steps.state_ids[at]], 1)
    row = torch.nonzero(at)[:, 0]
    sizes = trajectory_returns(rewards.abs(), mask)[row]
    compared = relative(to_go[at], places, sizes, divide_by_std=divide_by_std)
    per_turn = rewards.new_zeros(len(rewards), size).index_put(
        (row, steps.turn_index[at]), compared.to(rewards.dtype)
    )
    return torch.where(mask, per_turn.gather(1, steps.turn_index), zero)
