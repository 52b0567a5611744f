"""Check how the terms of the loss are put together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithm import Algorithm
from ragen_pl.objective import Scores, estimate, policy_objective, value_objective
from ragen_pl.ops.advantages import reward_to_go
from ragen_pl.packing import micro_batches
from ragen_pl.types import RolloutBatch


def batch(seed: int, rows: int = 6, length: int = 9) -> RolloutBatch:
    """Draw a batch of right-padded rows with two groups, half of it dropped."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, length + 1, (rows,), generator=generator)
    attention = torch.arange(length)[None] < lengths[:, None]
    loss_mask = attention & (torch.rand(rows, length, generator=generator) < 0.7)
    loss_mask[:, 0] = False
    ends = loss_mask & (loss_mask.flip(1).cumsum(1).flip(1) == 1)
    weights = (torch.arange(rows) % 2).float()
    rewards = torch.where(ends, torch.randn(rows, length, generator=generator), torch.zeros(()))
    return RolloutBatch(
        input_ids=torch.randint(0, 50, (rows, length), generator=generator),
        attention_mask=attention,
        loss_mask=loss_mask,
        turn_index=torch.zeros(rows, length, dtype=torch.long),
        turn_ends=ends,
        rewards=rewards.double(),
        sampled_log_probs=torch.zeros(rows, length),
        group_ids=torch.arange(rows) // 2,
        trajectory_ids=torch.arange(rows),
        policy_weights=weights,
    )


@given(st.integers(0, 10**6), st.floats(0.1, 100))
def test_whitened_advantages_do_not_know_the_scale_of_rewards(seed: int, scale: float) -> None:
    rollout, values = batch(seed), torch.zeros(6, 9, dtype=torch.float64)
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    assume(int(kept.sum()) > 1)
    assume(float(reward_to_go(rollout.rewards, kept)[kept].var()) > 1e-2)  # else ε shows
    one, _ = estimate(rollout, values, Algorithm(reward_scale=1.0))
    other, _ = estimate(rollout, values, Algorithm(reward_scale=scale))
    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_whitening_counts_kept_tokens_only() -> None:
    rollout = batch(1)
    advantage, returns = estimate(rollout, torch.zeros(6, 9, dtype=torch.float64), Algorithm())
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    assert float(advantage[kept].mean()) == pytest.approx(0, abs=1e-9)
    assert bool((advantage[~kept] == 0).all())
    dropped = rollout.policy_weights == 0
    assert bool((returns[dropped].abs().sum(1) > 0).any()), "the critic learns from dropped ones"


def parts_of(rollout: RolloutBatch, budget: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of the policy's and the critic's loss, cut by a token budget."""
    generator = torch.Generator().manual_seed(7)
    log_probs = torch.randn(6, 9, generator=generator, dtype=torch.float64).requires_grad_()
    values = torch.randn(6, 9, generator=generator, dtype=torch.float64).requires_grad_()
    advantage = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    kept = rollout.policy_weights > 0
    tokens = (rollout.loss_mask & kept[:, None]).sum()
    for rows, part in micro_batches(rollout, kept, budget):
        cut = part.input_ids.shape[1]
        here = log_probs[rows, :cut]
        loss, _ = policy_objective(
            Scores(here, -here, None),
            torch.zeros_like(here),
            advantage[rows, :cut],
            part,
            Algorithm(),
            tokens,
        )
        torch.autograd.backward(loss)
    for rows, part in micro_batches(rollout, torch.ones(6, dtype=torch.bool), budget):
        cut = part.input_ids.shape[1]
        zeros = torch.zeros(len(rows), cut, dtype=torch.float64)
        loss = value_objective(
            values[rows, :cut], zeros, zeros + 1, part, Algorithm(), rollout.loss_mask.sum()
        )
        torch.autograd.backward(loss)
    assert log_probs.grad is not None
    assert values.grad is not None
    return log_probs.grad, values.grad


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_micro_batches_do_not_change_the_update(seed: int, budget: int) -> None:
    rollout = batch(seed)
    for cut, whole in zip(parts_of(rollout, budget), parts_of(rollout, 10**6), strict=True):
        torch.testing.assert_close(cut, whole, atol=1e-12, rtol=0)


def test_a_dropped_trajectory_moves_the_critic_but_not_the_policy() -> None:
    rollout = batch(3)
    policy, critic = parts_of(rollout, 20)
    dropped = rollout.policy_weights == 0
    assert bool((policy[dropped] == 0).all())
    assert bool((critic[dropped].abs().sum(1) > 0).any())
