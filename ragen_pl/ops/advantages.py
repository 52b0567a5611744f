"""Estimate advantages: pure functions of tensors.

All take and return (B, T) tensors in which index t is about token t, and are zero off the mask.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Run generalised advantage estimation along the sampled tokens only.

    δₜ = rₜ + γ V₊ − Vₜ and Aₜ = δₜ + γλ A₊, where ₊ is the *next sampled token* of the row (V₊ = A₊
    = 0 after the last), so neither the environment's tokens nor their number change anything.
    Schulman et al. 2016 (1506.02438), eq. 16; token-level over the trajectory as in RAGEN §3.2.

    Args:
        rewards: (B, T) at turn ends.
        values: (B, T) of the state before token t.
        mask: (B, T) bool, sampled tokens.

    Returns:
        Advantages and returns (advantages + values), both (B, T).

    Example:
        >>> r = torch.tensor([[0.0, 9.0, 1.0]]); v = torch.tensor([[0.5, 7.0, 0.25]])
        >>> m = torch.tensor([[True, False, True]])
        >>> gae(r, v, m, gamma=1.0, gae_lambda=1.0)[0]
        tensor([[0.5000, 0.0000, 0.7500]])
    """
    zero = torch.zeros_like(values)
    rewards, values = torch.where(mask, rewards, zero), torch.where(mask, values, zero)
    advantages = torch.zeros_like(values)
    next_value, next_advantage = zero[:, 0], zero[:, 0]
    for t in range(values.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * gae_lambda * next_advantage
        advantages[:, t] = torch.where(here, advantage, zero[:, t])
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    return advantages, advantages + values


def reward_to_go(rewards: Tensor, mask: Tensor) -> Tensor:
    """Sum each token's own and later rewards; (B, T), zero off the mask."""
    rewards = torch.where(mask, rewards, torch.zeros_like(rewards))
    return torch.where(mask, rewards.flip(1).cumsum(1).flip(1), torch.zeros_like(rewards))


def grpo(
    rewards: Tensor, mask: Tensor, group_ids: Tensor, *, divide_by_std: bool, eps: float = 1e-6
) -> Tensor:
    """Compare each trajectory's return with its group's: Â = (R − mean) / (std + ε).

    RAGEN eq. 5 with the group's own statistics (Bessel-corrected), as in GRPO (2402.03300).
    A group of one gets 0: it has nothing to be compared with.

    Args:
        rewards: (B, T).
        mask: (B, T) bool.
        group_ids: (B,) int.
        divide_by_std: False is Dr. GRPO (2503.20783).

    Returns:
        (B, T), the same for all sampled tokens of a trajectory.
    """
    returns = torch.where(mask, rewards, torch.zeros_like(rewards)).sum(1)
    _, group = torch.unique(group_ids, return_inverse=True)
    groups = int(group.max()) + 1 if len(group) else 0
    count = torch.zeros(groups, dtype=returns.dtype).index_add(0, group, torch.ones_like(returns))
    mean = torch.zeros_like(count).index_add(0, group, returns) / count
    centred = returns - mean[group]
    advantage = centred
    if divide_by_std:
        square = torch.zeros_like(count).index_add(0, group, centred.square())
        std = torch.sqrt(square / (count - 1).clamp(min=1))
        advantage = centred / (std[group] + eps)
    return torch.where(mask, advantage[:, None], torch.zeros_like(rewards))
