"""The terms of the loss: whitening, denominators, KL in the rewards."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms.coefficients import Coefficients
from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig, ReinforcePlusPlus, Success
from ragen_pl.algorithms.policy_losses import CISPO, GSPO, LogLikelihood
from ragen_pl.models.policy import PolicyOutput
from ragen_pl.ops.advantages import reward_to_go
from ragen_pl.ops.losses import Aggregation, KLEstimator
from ragen_pl.rollout.micro_batching import micro_batches
from ragen_pl.training.update import (
    LossDenominators,
    PolicyObjective,
    ValueObjective,
    compute_advantages,
)
from ragen_pl.types import PolicyBatch, RolloutBatch


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
        state_ids=torch.zeros(rows, length, dtype=torch.long),
        turn_ends=ends,
        rewards=rewards.double(),
        outcome_rewards=rewards.double() / 2,
        thought_rewards=rewards.double() / 2,
        thought_mask=loss_mask & (torch.arange(length)[None] < 3),
        sampled_log_probs=-torch.rand(rows, length, generator=generator).double(),
        group_ids=torch.arange(rows) // 2,
        trajectory_ids=torch.arange(rows),
        sequence_index=torch.zeros(rows, dtype=torch.long),
        trajectory_tokens=loss_mask.sum(1),
        successes=torch.arange(rows) % 3 == 1,
        policy_weights=weights,
        env_ids=torch.zeros(rows, dtype=torch.long),
    )


@given(st.integers(0, 10**6), st.floats(0.1, 100))
def test_whitened_advantages_do_not_depend_on_the_scale_of_rewards(seed: int, scale: float) -> None:
    rollout, values = batch(seed), torch.zeros(6, 9, dtype=torch.float64)
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    assume(int(kept.sum()) > 1)
    assume(float(reward_to_go(rollout.rewards, kept)[kept].var()) > 1e-2)  # else ε shows
    one, _ = compute_advantages(rollout, values, Algorithm(advantage=GAE(reward_scale=1.0)))
    other, _ = compute_advantages(rollout, values, Algorithm(advantage=GAE(reward_scale=scale)))
    torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_whitening_counts_kept_tokens_only() -> None:
    rollout = batch(1)
    advantage, returns = compute_advantages(
        rollout, torch.zeros(6, 9, dtype=torch.float64), Algorithm()
    )
    kept = rollout.loss_mask & (rollout.policy_weights > 0)[:, None]
    assert float(advantage[kept].mean()) == pytest.approx(0, abs=1e-9)
    assert bool((advantage[~kept] == 0).all())
    dropped = rollout.policy_weights == 0
    assert bool((returns[dropped].abs().sum(1) > 0).any()), "the critic learns from dropped ones"


KINDS: tuple[Aggregation, ...] = get_args(Aggregation)
ALGORITHMS = {
    **{kind: Algorithm(aggregation=kind) for kind in KINDS},
    "gspo": Algorithm(policy_loss=GSPO(clip_low=0.5, clip_high=0.5), aggregation=KINDS[1]),
    "cispo": Algorithm(policy_loss=CISPO()),
    "corrected": Algorithm(tis_cap=2.0),
    "star": Algorithm(advantage=Success(), policy_loss=LogLikelihood()),
    **{name: Algorithm(kl=KLPenalty(coef=0.5, estimator=name)) for name in get_args(KLEstimator)},
}


def gradients(
    rollout: RolloutBatch, budget: int, algorithm: Algorithm, ranks: int = 1
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the policy's and the critic's loss.

    Args:
        budget: Tokens of a micro-batch.
        ranks: Over how many the groups are dealt; what they share is handed to each.
    """
    generator = torch.Generator().manual_seed(7)
    shape = rollout.rewards.shape
    draws = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    log_probs, values = draws[0].requires_grad_(), draws[1].clone().requires_grad_()
    advantage, reference = draws[2], draws[3]
    kept = rollout.policy_weights > 0
    denominators = LossDenominators.of(rollout, algorithm.aggregation)
    coefficients = Coefficients(algorithm).current
    zeros = torch.zeros(shape, dtype=torch.float64)
    whole = PolicyBatch(rollout, zeros, zeros, advantage, zeros + 1, chosen=None)
    policy_objective = PolicyObjective(algorithm, coefficients, denominators)
    value_objective = ValueObjective(whole, CriticConfig())
    for own in range(ranks):
        mine = rollout.group_ids % ranks == own
        for rows, part in micro_batches(whole, kept & mine, budget):
            cut = part.advantages.shape[1]
            here = log_probs[rows, :cut]
            ref = reference[rows, :cut] if algorithm.kl_in_loss else None
            loss, _ = policy_objective(PolicyOutput(here, -here, None), part, ref)
            torch.autograd.backward(loss)
        for rows, part in micro_batches(whole, mine, budget):
            torch.autograd.backward(value_objective(values[rows, : part.values.shape[1]], part))
    assert log_probs.grad is not None
    assert values.grad is not None
    return log_probs.grad, values.grad


@pytest.mark.parametrize("name", ALGORITHMS)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 60))
@settings(max_examples=20)
def test_neither_micro_batches_nor_ranks_change_the_update(
    name: str, seed: int, budget: int
) -> None:
    rollout, algorithm = batch(seed), ALGORITHMS[name]
    whole = gradients(rollout, 10**6, algorithm)
    for cut in (gradients(rollout, budget, algorithm), gradients(rollout, budget, algorithm, 3)):
        for one, other in zip(cut, whole, strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_a_dropped_trajectory_moves_the_critic_but_not_the_policy() -> None:
    rollout = batch(3)
    policy, critic = gradients(rollout, 20, Algorithm())
    dropped = rollout.policy_weights == 0
    assert bool((policy[dropped] == 0).all())
    assert bool((critic[dropped].abs().sum(1) > 0).any())


def test_a_kl_penalty_stays_at_its_token_when_rewards_are_credited_to_the_last() -> None:
    rollout = batch(2)
    penalty = torch.where(rollout.loss_mask, 0.5, 0.0).double()
    algorithm = Algorithm(advantage=ReinforcePlusPlus(reward_at="trajectory"))
    _, returns = compute_advantages(rollout, torch.zeros_like(penalty), algorithm, penalty)
    _, plain = compute_advantages(rollout, torch.zeros_like(penalty), algorithm)
    expected = reward_to_go(penalty, rollout.loss_mask)
    torch.testing.assert_close(plain - returns, expected, atol=1e-12, rtol=0)


def test_the_success_estimator_gives_the_mean_negative_log_likelihood() -> None:
    rollout, algorithm = batch(5), ALGORITHMS["star"]
    log_probs = -torch.rand(6, 9, dtype=torch.float64)
    advantage, _ = compute_advantages(rollout, torch.zeros_like(log_probs), algorithm)
    kept = rollout.rows(rollout.policy_weights > 0)
    here = torch.where(kept.loss_mask, log_probs[rollout.policy_weights > 0], 0.0)
    zeros = torch.zeros_like(here)
    kept_advantage = advantage[rollout.policy_weights > 0]
    part = PolicyBatch(kept, here, zeros, kept_advantage, zeros, chosen=None)
    denominators = LossDenominators.of(rollout, algorithm.aggregation)
    objective = PolicyObjective(algorithm, Coefficients(algorithm).current, denominators)
    _, metrics = objective(PolicyOutput(here, zeros, None), part)
    imitated = kept.loss_mask & kept.successes[:, None]
    assert bool(imitated.any())
    assert float(metrics[0]) == pytest.approx(-float(here[imitated].mean()), rel=1e-5)
