"""Advantage estimators against closed forms, invariants and an enumerated policy gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.advantages import (
    Turns,
    bi_level_gae,
    gae,
    on_last_token,
    reward_to_go,
    success_weights,
    thought_advantages,
)
from ragen_pl.ops.masked import masked_mean, whiten
from tests.ops.tiny_process import (
    HORIZON,
    enumerate_paths,
    exact_values,
    random_policy,
    true_gradient,
)


def rows(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Draw rewards, values and a mask of one shape, with anything off the mask."""
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(batch, length, generator=generator, dtype=dtype)
    values = torch.randn(batch, length, generator=generator, dtype=dtype)
    mask = torch.rand(batch, length, generator=generator) < 0.6
    return rewards, values, mask


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    return rows(draw)


def naive_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Sum (γλ)^l δ explicitly over one unmasked row."""
    n = len(rewards)
    deltas = [
        rewards[t] + gamma * (values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)
    ]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


@given(batches(), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_explicit_sum_over_sampled_tokens(
    batch: tuple[Tensor, Tensor, Tensor], gamma: float, lam: float
) -> None:
    rewards, values, mask = batch
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    for row in range(len(rewards)):
        at = mask[row]
        expected = naive_gae(rewards[row, at].tolist(), values[row, at].tolist(), gamma, lam)
        torch.testing.assert_close(
            advantages[row, at], torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0
        )
    assert bool((advantages[~mask] == 0).all())
    assert bool((returns[~mask] == 0).all())


@given(batches())
def test_gae_telescopes_to_reward_to_go_minus_value(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, values, mask = batch
    advantages, _ = gae(rewards, values, mask, 1.0, 1.0)
    expected = torch.where(mask, reward_to_go(rewards, mask) - values, torch.zeros_like(values))
    torch.testing.assert_close(advantages, expected, atol=1e-10, rtol=0)


@given(batches(), st.integers(0, 8), st.integers(1, 5), st.floats(0, 1))
def test_environment_tokens_have_no_effect(
    batch: tuple[Tensor, Tensor, Tensor], place: int, count: int, lam: float
) -> None:
    """Neither the number nor the content of observation tokens changes advantages."""
    rewards, values, mask = batch
    place = min(place, rewards.shape[1])

    def insert(tensor: Tensor, filler: Tensor) -> Tensor:
        return torch.cat([tensor[:, :place], filler, tensor[:, place:]], 1)

    noise = torch.full((len(rewards), count), 1e6, dtype=torch.float64)
    longer_mask = insert(mask, torch.zeros(len(rewards), count, dtype=torch.bool))
    before, _ = gae(rewards, values, mask, 0.9, lam)
    after, _ = gae(insert(rewards, noise), insert(values, noise), longer_mask, 0.9, lam)
    torch.testing.assert_close(after[longer_mask], before[mask], atol=1e-10, rtol=0)


@given(batches())
def test_whitening_gives_mean_zero_variance_one(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask = batch
    white = whiten(rewards, mask)
    assert bool((white[~mask] == 0).all())
    assert abs(float(masked_mean(white, mask))) < 1e-8
    if int(mask.sum()) > 1:
        assert float(white[mask].var()) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(("shape", "value"), [((127, 41), 10.9), ((113, 53), 1234.1)])
def test_whitening_equal_numbers_gives_zeros(shape: tuple[int, int], value: float) -> None:
    """Also where their mean in float32 is not the number itself; 3e-7 of it is rounding, too."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.7
    equal = torch.full(shape, value)
    assert not bool(whiten(equal, mask).any())
    rounded = equal * (1 + 3e-7 * (torch.arange(shape[1]) % 2))
    assert not bool(whiten(rounded, mask).any())
    differing = equal * (1 + 1e-2 * (torch.arange(shape[1]) % 2))
    assert float(whiten(differing, mask)[mask].var()) == pytest.approx(1.0, abs=1e-2)


# --- turns --------------------------------------------------------------------------------------


@st.composite
def batches_of_turns(draw: st.DrawFn) -> tuple[Tensor, Tensor, Turns]:
    """Draw rows cut into turns, each ending at a sampled token; any reward may be zero."""
    rewards, values, mask = rows(draw)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    ends = (mask & (torch.rand(mask.shape, generator=generator) < 0.4)) | last
    index = ends.cumsum(1) - ends.long()
    earns = torch.rand(mask.shape, generator=generator) < 0.5
    rewards = torch.where(ends & earns, rewards, torch.zeros_like(rewards))
    return rewards, values, Turns(mask, index, ends)


def naive_bi_level(
    turns: list[tuple[float, list[float]]], gamma: float, lam: float, turn_gamma: float
) -> list[float]:
    """Follow the definition over one row: (reward, values of the tokens) for each turn."""
    ends = [values[-1] for _, values in turns]
    of_turns = naive_gae([reward for reward, _ in turns], ends, turn_gamma, lam)
    found: list[float] = []
    for (_, values), end, advantage in zip(turns, ends, of_turns, strict=True):
        found += naive_gae([0.0] * (len(values) - 1) + [advantage + end], values, gamma, lam)
    return found


@given(batches_of_turns(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_bi_level_gae_follows_its_definition_with_rewards_of_zero(
    batch: tuple[Tensor, Tensor, Turns], gamma: float, lam: float, turn_gamma: float
) -> None:
    rewards, values, turns = batch
    advantages, returns = bi_level_gae(
        rewards, values, turns, gamma=gamma, gae_lambda=lam, turn_gamma=turn_gamma
    )
    for row in range(len(rewards)):
        at = turns.mask[row]
        cut = []
        for turn in range(int(turns.ends[row].sum())):
            here = at & (turns.index[row] == turn)
            cut.append((float(rewards[row, here].sum()), values[row, here].tolist()))
        expected = torch.tensor(naive_bi_level(cut, gamma, lam, turn_gamma), dtype=torch.float64)
        torch.testing.assert_close(advantages[row, at], expected, atol=1e-10, rtol=0)
    torch.testing.assert_close(
        returns, advantages + torch.where(turns.mask, values, 0.0), atol=1e-12, rtol=0
    )
    assert bool((advantages[~turns.mask] == 0).all())


@given(batches_of_turns(), st.integers(0, 10**6))
def test_bi_level_gae_without_discounts_is_gae_even_with_rewards_inside_turns(
    batch: tuple[Tensor, Tensor, Turns], seed: int
) -> None:
    _, values, turns = batch
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(values.shape, generator=generator, dtype=torch.float64)
    two = bi_level_gae(rewards, values, turns, gamma=1.0, gae_lambda=1.0, turn_gamma=1.0)
    one = gae(rewards, values, turns.mask, 1.0, 1.0)
    torch.testing.assert_close(two[0], one[0], atol=1e-10, rtol=0)


def test_bi_level_gae_discounts_per_turn_however_long_the_turns() -> None:
    """With λ = 1 a turn's first token sees r₁ + γ_turn r₂ less its value."""
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    turns = Turns(
        torch.ones(1, 5, dtype=torch.bool),
        torch.tensor([[0, 0, 0, 1, 1]]),
        torch.tensor([[False, False, True, False, True]]),
    )
    advantages, _ = bi_level_gae(
        rewards, torch.zeros_like(rewards), turns, gamma=1.0, gae_lambda=1.0, turn_gamma=0.5
    )
    assert advantages.tolist() == [[0.5, 0.5, 0.5, 1.0, 1.0]]


@given(batches(), st.floats(0, 1))
def test_reward_to_go_is_the_discounted_sum(
    batch: tuple[Tensor, Tensor, Tensor], gamma: float
) -> None:
    rewards, _, mask = batch
    found = reward_to_go(rewards, mask, gamma)
    for row in range(len(rewards)):
        own = rewards[row, mask[row]].tolist()
        expected = [
            sum(gamma ** (k - t) * own[k] for k in range(t, len(own))) for t in range(len(own))
        ]
        torch.testing.assert_close(
            found[row, mask[row]], torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=0
        )


@given(batches())
def test_rewards_on_the_last_token_keep_their_sum(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask = batch
    moved = on_last_token(rewards, mask)
    for row in range(len(rewards)):
        places = torch.nonzero(mask[row])[:, 0]
        expected = torch.zeros_like(rewards[row])
        if len(places):
            expected[places[-1]] = rewards[row, mask[row]].sum()
        torch.testing.assert_close(moved[row], expected, atol=1e-12, rtol=0)


@given(batches(), st.integers(0, 2**4 - 1))
def test_weights_of_successes_average_to_one(
    batch: tuple[Tensor, Tensor, Tensor], bits: int
) -> None:
    _, _, mask = batch
    successes = torch.tensor([bool(bits >> row & 1) for row in range(len(mask))])
    tokens = mask.sum().double()
    imitated = (mask & successes[:, None]).sum().double()
    weights = success_weights(mask, successes, tokens, imitated)
    assert bool((weights[~mask] == 0).all())
    assert bool((weights[~successes] == 0).all())
    if float(imitated):
        assert float(weights.sum() / tokens) == pytest.approx(1.0)
        assert len(torch.unique(weights[mask & successes[:, None]])) == 1


# --- against an enumerated policy gradient ------------------------------------------------------


@pytest.mark.parametrize("lam", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("bi_level", [False, True])
def test_with_exact_values_gae_gives_the_true_policy_gradient(lam: float, bi_level: bool) -> None:
    """With V equal to V^π, E[Σ ∇log π · A] is the gradient of J for every λ, one token a turn."""
    theta = random_policy(0)
    paths = enumerate_paths(theta)
    exact = exact_values(theta)
    rewards = torch.tensor([r for *_, r in paths], dtype=torch.float64)
    states = torch.tensor([s for s, *_ in paths])
    values = torch.stack([exact[t, states[:, t]] for t in range(HORIZON)], 1)
    mask = torch.ones_like(rewards, dtype=torch.bool)
    advantages, _ = gae(rewards, values, mask, 1.0, lam)
    if bi_level:
        turns = Turns(mask, torch.arange(HORIZON).expand(len(mask), -1), mask)
        advantages, _ = bi_level_gae(
            rewards, values, turns, gamma=1.0, gae_lambda=lam, turn_gamma=1.0
        )
    surrogate = torch.zeros((), dtype=torch.float64)
    for (path_states, actions, probability, _), row in zip(paths, advantages, strict=True):
        for t, (state, action) in enumerate(zip(path_states, actions, strict=True)):
            log_prob = torch.log_softmax(theta[state], -1)[action]
            surrogate = surrogate + probability.detach() * log_prob * row[t]
    (estimate,) = torch.autograd.grad(surrogate, theta)
    torch.testing.assert_close(estimate, true_gradient(theta), atol=1e-12, rtol=0)


def two_thoughts_and_one() -> tuple[Tensor, Turns, Tensor]:
    """Return rewards, turns and the thoughts' mask: turns of tokens ``prompt thought answer``; the
    last turn of the second row has no thought."""
    index = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]])
    mask = torch.tensor([[0, 1, 1, 1, 0, 1, 1], [0, 1, 1, 0, 0, 1, 1]]).bool()
    ends = torch.tensor([[0, 0, 0, 1, 0, 0, 1], [0, 0, 1, 0, 0, 0, 1]]).bool()
    thoughts = torch.tensor([[0, 1, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]]).bool()
    rewards = torch.zeros(2, 7, dtype=torch.float64)
    rewards[ends] = torch.tensor([-3.0, 0.0, -6.0, 7.0], dtype=torch.float64)
    return rewards, Turns(mask, index, ends), thoughts


def test_thoughts_are_credited_with_their_own_reward_by_example() -> None:
    """Rewards -3, 0 and -6 have mean -3 and deviation 3; the long thought counts once."""
    rewards, turns, thoughts = two_thoughts_and_one()
    found = thought_advantages(rewards, turns, thoughts, torch.tensor([True, True]))
    expected = torch.tensor([[0, 0, 0, 0, 0, 1, 0], [0, -1, 0, 0, 0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


def test_thoughts_of_dropped_trajectories_neither_count_nor_learn() -> None:
    rewards, turns, thoughts = two_thoughts_and_one()
    found = thought_advantages(rewards, turns, thoughts, torch.tensor([True, False]))
    half = 0.5**0.5  # of -3 and 0
    expected = torch.tensor([[0, -half, -half, 0, 0, half, 0], [0.0] * 7], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


def test_equal_thoughts_no_thoughts_and_no_rows_have_no_advantage() -> None:
    rewards, turns, thoughts = two_thoughts_and_one()
    kept = torch.tensor([True, True])
    equal = torch.where(turns.ends, -0.3, 0.0)
    assert float(thought_advantages(equal, turns, thoughts, kept).abs().max()) < 1e-3
    assert not bool(thought_advantages(rewards, turns, thoughts & False, kept).any())
    none = Turns(turns.mask[:0], turns.index[:0], turns.ends[:0])
    assert thought_advantages(rewards[:0], none, thoughts[:0], kept[:0]).shape == (0, 7)
