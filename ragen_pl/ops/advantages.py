"""Advantages along a trajectory: GAE over tokens and over turns, and rewards to go.

Pure functions that take and return (B, T) tensors in which index t is about token t, with zeros off
the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ragen_pl.ops.masked import Reduce, local, whiten


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    gamma: float,
    gae_lambda: float,
    stops: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run generalized advantage estimation along the sampled tokens only.

    δₜ = rₜ + γ V₊ − Vₜ and Aₜ = δₜ + γλ A₊, where ₊ is the *next sampled token* of the row (V₊ = A₊
    = 0 after the last), so neither the environment's tokens nor their number have any effect.
    Schulman et al. 2016 (1506.02438), eq. 16; token-level over the trajectory as in RAGEN §3.2.

    Args:
        rewards: (B, T) rewards, at turn ends.
        values: (B, T) values of the state before token t.
        mask: (B, T) bool, sampled tokens.
        gamma: γ, the discount per sampled token.
        gae_lambda: λ, the decay of the advantage trace per sampled token.
        stops: (B, T) bool: V₊ = A₊ = 0 after these tokens too; no credit flows back across them.

    Returns:
        Advantages and returns (advantages + values), both (B, T).

    Example:
        >>> r = torch.tensor([[0.0, 9.0, 1.0]]); v = torch.tensor([[0.5, 7.0, 0.25]])
        >>> m = torch.tensor([[True, False, True]])
        >>> gae(r, v, m, gamma=1.0, gae_lambda=1.0)[0]
        tensor([[0.5000, 0.0000, 0.7500]])
    """
    zero = torch.zeros_like(values)
    stops = torch.zeros_like(mask) if stops is None else stops
    values = torch.where(mask, values, zero)
    next_values = torch.where(stops, zero, _next_marked(values, mask | stops))
    deltas = torch.where(mask, rewards + gamma * next_values - values, zero)
    # A token that is not sampled passes on the sum from its right unchanged; a stop passes nothing.
    carries = torch.ones_like(values).masked_fill(mask, gamma * gae_lambda).masked_fill(stops, 0.0)
    advantages = torch.where(mask, _suffix_sums(deltas, carries), zero)
    return advantages, advantages + values


def _next_marked(values: Tensor, marked: Tensor) -> Tensor:
    """Return, for each index of (B, T), the value at the next later index that is marked; 0 if
    there is none."""
    length = values.shape[1]
    indices = torch.arange(length, device=values.device).expand_as(marked)
    indices = torch.where(marked, indices, length)
    following = indices.flip(1).cummin(1).values.flip(1)  # the next one, or the index itself
    padded = torch.nn.functional.pad(values, (0, 1))
    return padded.gather(1, torch.nn.functional.pad(following, (0, 1), value=length)[:, 1:])


def _suffix_sums(terms: Tensor, carries: Tensor) -> Tensor:
    """Solve Aₜ = termₜ + carryₜ Aₜ₊₁ along (B, T) in log₂ T steps, each of which doubles the span
    that every sum covers."""
    sums, span = terms.clone(), 1
    while span < terms.shape[1]:
        sums[:, :-span] += carries[:, :-span] * sums[:, span:]
        further = carries[:, :-span] * carries[:, span:]
        carries = torch.cat([further, carries[:, -span:]], dim=1)
        span *= 2
    return sums


@dataclass(frozen=True, slots=True)
class Turns:
    """The turn boundaries of a batch, as recorded during the rollout.

    They cannot be derived from rewards: a turn may well earn zero.
    """

    mask: Tensor
    """(B, T) bool: sampled tokens."""
    index: Tensor
    """(B, T) int: the turn each token belongs to."""
    ends: Tensor
    """(B, T) bool: the last sampled token of each turn."""

    def sums(self, values: Tensor) -> Tensor:
        """Sum values, (B, T), over each turn; (B, K), 0 for the turns that a row does not have."""
        num_turns = int(self.index.max()) + 1 if self.index.numel() else 0
        return values.new_zeros(len(values), num_turns).scatter_add(1, self.index, values)


def bi_level_gae(
    rewards: Tensor,
    values: Tensor,
    turns: Turns,
    *,
    gamma: float,
    gae_lambda: float,
    turn_gamma: float,
) -> tuple[Tensor, Tensor]:
    """Run GAE over the turns, then over the tokens of each turn.

    With b_k the last sampled token of turn k and r_k the sum of the turn's rewards:
    δ_k = r_k + γ_turn V(b_{k+1}) − V(b_k), A_k = δ_k + γ_turn λ A_{k+1}; the turn's return
    G_k = A_k + V(b_k) stands in for its rewards at b_k, and token-level GAE with γ and λ runs
    inside the turn, starting afresh at every b_k. RAGEN, appendix on bi-level GAE. With
    γ = γ_turn = λ = 1 it equals ``gae``.

    A reward that is not at the end of its turn (a KL penalty per token) stays at its token and is
    subtracted from what the turn's end receives, so that it is counted once.

    Args:
        rewards: (B, T) rewards; any may be zero.
        values: (B, T) values of the state before token t.
        turns: The turn boundaries.
        gamma: γ, the discount per token within a turn.
        gae_lambda: λ, of both levels.
        turn_gamma: γ_turn, the discount per turn.

    Returns:
        Advantages and returns (advantages + values), both (B, T).
    """
    zero = torch.zeros_like(values)
    rewards = torch.where(turns.mask, rewards, zero)
    of_turn = turns.sums(rewards).gather(1, turns.index)
    _, turn_returns = gae(of_turn, values, turns.ends, turn_gamma, gae_lambda)
    elsewhere = of_turn - rewards  # what stays at the turn's other tokens
    credited = torch.where(turns.ends, turn_returns - elsewhere, rewards)
    return gae(credited, values, turns.mask, gamma, gae_lambda, stops=turns.ends)


def reward_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Sum each token's own and later rewards, discounted per sampled token.

    Returns:
        (B, T), zero off the mask.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)[0]


def on_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Move each row's rewards to its last sampled token; (B, T), zero elsewhere.

    The trajectory is then credited as a whole, without attribution to turns (RAGEN's default
    placement).
    """
    total = torch.where(mask, rewards, torch.zeros_like(rewards)).sum(1, keepdim=True)
    later = mask.flip(1).cumsum(1).flip(1)
    return torch.where(mask & (later == 1), total, torch.zeros_like(rewards))


MOST_SPREAD = 3.0
"""Largest size of a whitened reward of a thought, in standard deviations."""


def thought_advantages(
    rewards: Tensor, turns: Turns, thought_mask: Tensor, kept: Tensor, reduce: Reduce = local
) -> Tensor:
    """Give each thought's tokens the reward of their own thought, whitened over all thoughts.

    With r_k the sum of turn k's rewards and μ, σ² their mean and Bessel-corrected variance over the
    turns of kept trajectories that have a thought, each turn once however long it is:
    A_t = (r_k − μ) / √(σ² + ε) at the thought's tokens t of turn k, but at most ``MOST_SPREAD`` in
    size: where nearly all thoughts are true, a single untrue one would outweigh all else. Nothing
    flows to other turns.

    Args:
        rewards: (B, T) rewards of thoughts, at turn ends.
        turns: The turn boundaries.
        thought_mask: (B, T) bool, the tokens of thoughts.
        kept: (B,) bool, the trajectories that the policy is trained on.
        reduce: The sum over all ranks.

    Returns:
        (B, T), zero off the tokens of kept trajectories' thoughts; zero if all are equal.
    """
    marked = thought_mask & turns.mask & kept[:, None]
    of_turn = turns.sums(torch.where(turns.ends, rewards, 0.0))
    has_thought = turns.sums(marked.to(rewards.dtype)) > 0
    whitened = whiten(of_turn, has_thought, reduce).clamp(-MOST_SPREAD, MOST_SPREAD)
    spread = whitened.gather(1, turns.index)
    return torch.where(marked, spread, torch.zeros_like(spread))


def success_weights(mask: Tensor, successes: Tensor, tokens: Tensor, imitated: Tensor) -> Tensor:
    """Weight successful trajectories so that the mean over all sampled tokens is 1; others get 0.

    The weighted log-likelihood per token is then the mean over the tokens of successful
    trajectories, however many there are. Without any success all weights are 0.

    Args:
        mask: (B, T) bool, sampled tokens.
        successes: (B,) bool.
        tokens: Number of sampled tokens of the kept trajectories, over all ranks.
        imitated: Number of sampled tokens of the successful ones among them, over all ranks.

    Returns:
        (B, T) of the type of ``tokens``.
    """
    weight = tokens / imitated.clamp(min=1)
    return torch.where(mask & successes[:, None], weight, torch.zeros_like(weight))
