"""Check advantage estimators against closed forms, invariants and an enumerated policy gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.advantages import gae, grpo, reward_to_go
from ragen_pl.ops.masked import masked_mean, whiten


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
def test_environment_tokens_change_nothing(
    batch: tuple[Tensor, Tensor, Tensor], place: int, count: int, lam: float
) -> None:
    """Longer observations, and whatever stands at them, leave advantages as they are."""
    rewards, values, mask = batch
    place = min(place, rewards.shape[1])

    def insert(tensor: Tensor, filler: Tensor) -> Tensor:
        return torch.cat([tensor[:, :place], filler, tensor[:, place:]], 1)

    noise = torch.full((len(rewards), count), 1e6, dtype=torch.float64)
    longer_mask = insert(mask, torch.zeros(len(rewards), count, dtype=torch.bool))
    before, _ = gae(rewards, values, mask, 0.9, lam)
    after, _ = gae(insert(rewards, noise), insert(values, noise), longer_mask, 0.9, lam)
    torch.testing.assert_close(after[longer_mask], before[mask], atol=1e-10, rtol=0)


@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=8),
    st.floats(-5, 5),
    st.floats(0.1, 10),
)
def test_grpo_ignores_shift_and_scale(returns: list[float], shift: float, scale: float) -> None:
    base = torch.tensor(returns, dtype=torch.float64)
    if float(base.std()) < 1e-2:
        return
    mask, ids = torch.ones(len(base), 1, dtype=torch.bool), torch.zeros(len(base), dtype=torch.long)
    first = grpo(base[:, None], mask, ids, divide_by_std=True)
    second = grpo((base * scale + shift)[:, None], mask, ids, divide_by_std=True)
    torch.testing.assert_close(first, second, atol=2e-3, rtol=0)
    assert abs(float(first.sum())) < 1e-9


def test_grpo_closed_form() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    mask = torch.ones(4, 2, dtype=torch.bool)
    advantages = grpo(rewards, mask, torch.tensor([7, 7, 9, 9]), divide_by_std=True, eps=0.0)
    root = 2**-0.5
    assert advantages[:, 0].tolist() == pytest.approx([-root, root, root, -root])
    plain = grpo(rewards, mask, torch.tensor([7, 7, 9, 9]), divide_by_std=False)
    assert plain[:, 1].tolist() == [-1.0, 1.0, 0.5, -0.5]


@pytest.mark.parametrize("divide", [True, False])
def test_grpo_of_lonely_and_equal_members_is_zero_and_finite(divide: bool) -> None:
    rewards = torch.tensor([[3.0], [1.0], [1.0]])
    mask = torch.ones(3, 1, dtype=torch.bool)
    advantages = grpo(rewards, mask, torch.tensor([0, 1, 1]), divide_by_std=divide)
    assert advantages.tolist() == [[0.0], [0.0], [0.0]]


@given(batches())
def test_whitening_gives_mean_zero_variance_one(batch: tuple[Tensor, Tensor, Tensor]) -> None:
    rewards, _, mask = batch
    white = whiten(rewards, mask)
    assert bool((white[~mask] == 0).all())
    assert abs(float(masked_mean(white, mask))) < 1e-8
    if int(mask.sum()) > 1:
        assert float(white[mask].var()) == pytest.approx(1.0, abs=1e-3)


# --- the true policy gradient of a tiny decision process, by enumeration -------------------------

STATES, ACTIONS, HORIZON = 3, 2, 3
NEXT = torch.tensor([[1, 2], [2, 0], [0, 1]])
REWARD = torch.tensor([[0.0, 1.0], [0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)


def enumerate_paths(theta: Tensor) -> list[tuple[list[int], list[int], Tensor, list[float]]]:
    """List every (states, actions, probability, rewards) of the process from state 0."""
    paths = []
    for actions in itertools.product(range(ACTIONS), repeat=HORIZON):
        state, states, rewards = 0, [], []
        probability = torch.ones((), dtype=torch.float64)
        for action in actions:
            states.append(state)
            probability = probability * torch.softmax(theta[state], -1)[action]
            rewards.append(float(REWARD[state, action]))
            state = int(NEXT[state, action])
        paths.append((states, list(actions), probability, rewards))
    return paths


@pytest.mark.parametrize("lam", [1.0, 0.7, 0.0])
def test_gae_with_exact_values_gives_the_true_policy_gradient(lam: float) -> None:
    """With V equal to V^π, E[Σ ∇log π · A] is the gradient of J for every λ."""
    torch.manual_seed(0)
    theta = torch.randn(STATES, ACTIONS, dtype=torch.float64, requires_grad=True)
    paths = enumerate_paths(theta)
    objective = sum(p * sum(r) for _, _, p, r in paths)
    (truth,) = torch.autograd.grad(objective, theta, retain_graph=True)  # type: ignore[arg-type]

    exact = torch.zeros(HORIZON + 1, STATES, dtype=torch.float64)
    policy = torch.softmax(theta.detach(), -1)
    for t in reversed(range(HORIZON)):
        exact[t] = (policy * (REWARD + exact[t + 1][NEXT])).sum(-1)

    rewards = torch.tensor([r for *_, r in paths], dtype=torch.float64)
    states = torch.tensor([s for s, *_ in paths])
    values = torch.stack([exact[t, states[:, t]] for t in range(HORIZON)], 1)
    mask = torch.ones_like(rewards, dtype=torch.bool)
    advantages, _ = gae(rewards, values, mask, 1.0, lam)
    surrogate = torch.zeros((), dtype=torch.float64)
    for (path_states, actions, probability, _), row in zip(paths, advantages, strict=True):
        for t, (state, action) in enumerate(zip(path_states, actions, strict=True)):
            log_prob = torch.log_softmax(theta[state], -1)[action]
            surrogate = surrogate + probability.detach() * log_prob * row[t]
    (estimate,) = torch.autograd.grad(surrogate, theta)
    torch.testing.assert_close(estimate, truth, atol=1e-12, rtol=0)


def test_dr_grpo_is_unbiased_up_to_its_known_factor() -> None:
    """Over all pairs of paths, Dr. GRPO's estimate is (N−1)/N of the true gradient."""
    torch.manual_seed(1)
    theta = torch.randn(STATES, ACTIONS, dtype=torch.float64, requires_grad=True)
    paths = enumerate_paths(theta)
    objective = sum(p * sum(r) for _, _, p, r in paths)
    (truth,) = torch.autograd.grad(objective, theta, retain_graph=True)  # type: ignore[arg-type]
    log_probs = torch.stack([p.log() for _, _, p, _ in paths])
    surrogate = torch.zeros((), dtype=torch.float64)
    for i, j in itertools.product(range(len(paths)), repeat=2):
        rewards = torch.tensor([[sum(paths[i][3])], [sum(paths[j][3])]], dtype=torch.float64)
        mask = torch.ones(2, 1, dtype=torch.bool)
        advantage = grpo(rewards, mask, torch.zeros(2, dtype=torch.long), divide_by_std=False)
        weight = (paths[i][2] * paths[j][2]).detach()
        surrogate = surrogate + weight * (log_probs[[i, j]] * advantage[:, 0]).mean()
    (estimate,) = torch.autograd.grad(surrogate, theta)
    torch.testing.assert_close(estimate, truth * 0.5, atol=1e-12, rtol=0)
