"""Group-relative advantages against closed forms, invariants and an enumerated gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.advantages import Turns
from ragen_pl.ops.group_advantages import grpo, rloo, step_advantages
from tests.ops.tiny_process import HORIZON, enumerate_paths, random_policy, true_gradient

Estimator = Callable[[Tensor, Tensor, Tensor], Tensor]


def single_tokens(mask: Tensor) -> Turns:
    """One token per turn."""
    return Turns(mask, torch.arange(mask.shape[1]).expand_as(mask), mask)


def by_turn(rewards: Tensor, mask: Tensor, ids: Tensor, *, divide: bool = True) -> Tensor:
    """Compare turns whose tokens have the state of their index in the row."""
    states = torch.arange(rewards.shape[1]).expand(rewards.shape)
    turns = single_tokens(mask)
    return step_advantages(rewards, turns, ids, states, turn_gamma=0.9, divide_by_std=divide)


ESTIMATORS: dict[str, Estimator] = {
    "grpo": lambda r, m, g: grpo(r, m, g, divide_by_std=True),
    "dr_grpo": lambda r, m, g: grpo(r, m, g, divide_by_std=False),
    "rloo": rloo,
    "steps": by_turn,
    "steps_undivided": lambda r, m, g: by_turn(r, m, g, divide=False),
}
DIVIDES = ("grpo", "steps")
each = pytest.mark.parametrize("name", ESTIMATORS)


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Draw rewards, a mask and group ids; groups of any size, one included."""
    batch, length = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    rewards = torch.randn(batch, length, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, length, generator=generator) < 0.7
    ids = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch)))
    return rewards, mask, ids


@each
@given(batch=grouped(), seed=st.integers(0, 10**6))
def test_order_and_observations_do_not_matter(
    name: str, batch: tuple[Tensor, Tensor, Tensor], seed: int
) -> None:
    rewards, mask, ids = batch
    estimate = ESTIMATORS[name]
    plain = estimate(rewards, mask, ids)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(
        estimate(rewards[order], mask[order], ids[order]), plain[order], atol=1e-9, rtol=0
    )
    assert bool((plain[~mask] == 0).all())
    noisy = torch.where(mask, rewards, torch.full_like(rewards, torch.nan))
    torch.testing.assert_close(estimate(noisy, mask, ids), plain, atol=0, rtol=0)
    wider, longer = (torch.nn.functional.pad(x, (0, 3)) for x in (rewards, mask))
    torch.testing.assert_close(
        estimate(wider, longer, ids)[:, : mask.shape[1]], plain, atol=0, rtol=0
    )


@each
@given(
    returns=st.lists(st.floats(-10, 10), min_size=2, max_size=8),
    shift=st.floats(-5, 5),
    scale=st.floats(0.1, 10),
)
def test_shift_and_scale_of_rewards(
    name: str, returns: list[float], shift: float, scale: float
) -> None:
    """A shift changes nothing; a scale only estimates without division by std."""
    base = torch.tensor(returns, dtype=torch.float64)[:, None]
    if float(base.std()) < 1e-2:
        return
    mask, ids = torch.ones_like(base, dtype=torch.bool), torch.zeros(len(base), dtype=torch.long)
    first = ESTIMATORS[name](base, mask, ids)
    second = ESTIMATORS[name](base * scale + shift, mask, ids)
    expected = first if name in DIVIDES else first * scale
    torch.testing.assert_close(second, expected, atol=2e-3, rtol=0)
    assert abs(float(first.sum())) < 1e-9


@each
def test_single_and_equal_members_get_exactly_zero(name: str) -> None:
    """In float32 too, where the mean of equal numbers is not always their value."""
    rewards = torch.tensor([[3.0], [0.1], [0.1], [0.1]])
    mask, ids = torch.ones(4, 1, dtype=torch.bool), torch.tensor([0, 1, 1, 1])
    found = ESTIMATORS[name](rewards, mask, ids)
    assert found.dtype == torch.float32
    assert found.abs().max().item() < 1e-9


@each
def test_missing_members_make_a_smaller_group(name: str) -> None:
    rewards = torch.tensor([[1.0], [4.0], [0.0]], dtype=torch.float64)
    mask = torch.ones(3, 1, dtype=torch.bool)
    whole = ESTIMATORS[name](rewards, mask, torch.tensor([5, 5, 8]))
    alone = ESTIMATORS[name](rewards[:2], mask[:2], torch.tensor([0, 0]))
    torch.testing.assert_close(whole[:2], alone, atol=1e-12, rtol=0)
    assert whole[2].item() == 0.0


def test_closed_forms() -> None:
    rewards = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 0.0], [2.0, 2.0]], dtype=torch.float64)
    mask, ids = torch.ones(4, 2, dtype=torch.bool), torch.tensor([7, 7, 9, 9])
    root = 2**-0.5
    divided = grpo(rewards, mask, ids, divide_by_std=True)
    assert divided[:, 0].tolist() == pytest.approx([-root, root, root, -root], abs=1e-5)
    plain = grpo(rewards, mask, ids, divide_by_std=False)
    assert plain[:, 1].tolist() == [-1.0, 1.0, 0.5, -0.5]
    assert rloo(rewards, mask, ids)[:, 0].tolist() == [-2.0, 2.0, 1.0, -1.0]


def in_one_turn(rewards: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
    """Compare turns of one state, each of which is a whole row."""
    start = torch.zeros_like(mask, dtype=torch.long)
    ends = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    turns = Turns(mask, start, ends)
    return step_advantages(rewards, turns, ids, start, turn_gamma=0.9, divide_by_std=True)


@pytest.mark.parametrize(
    "estimate",
    [ESTIMATORS["grpo"], ESTIMATORS["dr_grpo"], ESTIMATORS["rloo"], in_one_turn],
    ids=["grpo", "dr_grpo", "rloo", "steps"],
)
def test_rewards_that_cancel_give_zero_despite_float32_rounding(
    estimate: Estimator,
) -> None:
    rewards = torch.tensor([[0.1, 0.2, -0.3], [0.7, 0.2, -0.9], [1.1, 2.2, -3.3]])
    assert bool(rewards.double().sum(1).any())
    mask, ids = torch.ones(3, 3, dtype=torch.bool), torch.zeros(3, dtype=torch.long)
    assert not bool(estimate(rewards, mask, ids).any())
    assert not bool(estimate(-rewards, mask, ids).any())


def test_small_differences_between_large_returns_are_exact() -> None:
    """Summed in float32, 1000.004 is 1000.00403."""
    rewards = torch.tensor([[1000.0, 0.004], [1000.0, 0.0]])
    mask, ids = torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, dtype=torch.long)
    found = grpo(rewards, mask, ids, divide_by_std=False)
    assert found[:, 0].tolist() == pytest.approx([0.002, -0.002], rel=1e-6)


def test_rloo_leaves_each_member_out_of_its_own_baseline() -> None:
    rewards = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    found = rloo(rewards, torch.ones(3, 1, dtype=torch.bool), torch.zeros(3, dtype=torch.long))
    assert found[:, 0].tolist() == pytest.approx([1 - 4.0, 2 - 3.5, 6 - 1.5])


def test_equal_states_are_compared_wherever_in_the_trajectory_they_are_met() -> None:
    """State 5 is met at turn 2 of one trajectory and at turn 1 of another; state 9 by one only."""
    rewards = torch.tensor([[0.0, 1.0], [3.0, 0.0], [0.0, 8.0]], dtype=torch.float64)
    states = torch.tensor([[9, 5], [5, 7], [5, 9]])
    mask, ids = torch.ones(3, 2, dtype=torch.bool), torch.tensor([0, 0, 1])
    found = step_advantages(
        rewards, single_tokens(mask), ids, states, turn_gamma=0.5, divide_by_std=False
    )
    # Step returns in state 5 of group 0: 1 and 3; group 1 is another start and does not count.
    assert found.tolist() == [[0.0, -1.0], [1.0, 0.0], [0.0, 0.0]]


def test_all_tokens_of_a_turn_share_its_step_advantage() -> None:
    rewards = torch.tensor([[0.0, 0.0, 2.0, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0, 0.0]]).double()
    mask = torch.tensor([[False, True, True, True, True], [False, True, True, False, False]])
    index = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    ends = torch.tensor([[False, False, True, False, True], [False, False, True, False, False]])
    states = torch.tensor([[3, 3, 3, 4, 4], [3, 3, 3, 0, 0]])
    turns, ids = Turns(mask, index, ends), torch.zeros(2, dtype=torch.long)
    found = step_advantages(rewards, turns, ids, states, turn_gamma=0.5, divide_by_std=False)
    # Returns of 2 + 0.5 · 4 and 0 in the shared state 3.
    assert found.tolist() == [[0.0, 2.0, 2.0, 0.0, 0.0], [0.0, -2.0, -2.0, 0.0, 0.0]]


# --- against an enumerated policy gradient ------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "factor"),
    [("dr_grpo", 0.5), ("rloo", 1.0)],
    ids=["dr_grpo: (N−1)/N of it", "rloo: exactly it"],
)
def test_over_all_pairs_of_paths_the_estimate_is_the_true_gradient(
    name: str, factor: float
) -> None:
    theta = random_policy(1)
    paths = enumerate_paths(theta)
    log_probs = torch.stack([p.log() for _, _, p, _ in paths])
    surrogate = torch.zeros((), dtype=torch.float64)
    for i, j in itertools.product(range(len(paths)), repeat=2):
        rewards = torch.tensor([[sum(paths[i][3])], [sum(paths[j][3])]], dtype=torch.float64)
        mask, ids = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, dtype=torch.long)
        advantage = ESTIMATORS[name](rewards, mask, ids)
        weight = (paths[i][2] * paths[j][2]).detach()
        surrogate = surrogate + weight * (log_probs[[i, j]] * advantage[:, 0]).mean()
    (estimate,) = torch.autograd.grad(surrogate, theta)
    torch.testing.assert_close(estimate, true_gradient(theta) * factor, atol=1e-12, rtol=0)


def test_over_the_whole_population_step_advantages_are_the_true_ones() -> None:
    """With every path as often as it is likely, a state's mean return is its value.

    States of the process are told apart by time here, as the return depends on what is left.
    """
    theta = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)  # all paths equally likely
    paths = enumerate_paths(theta)
    rewards = torch.tensor([r for *_, r in paths], dtype=torch.float64)
    states = torch.tensor([s for s, *_ in paths]) + 10 * torch.arange(HORIZON)
    mask = torch.ones_like(rewards, dtype=torch.bool)
    advantages = step_advantages(
        rewards,
        single_tokens(mask),
        torch.zeros(len(paths), dtype=torch.long),
        states,
        turn_gamma=1.0,
        divide_by_std=False,
    )
    surrogate = torch.zeros((), dtype=torch.float64)
    for (path_states, actions, _, _), row in zip(paths, advantages, strict=True):
        for t, (state, action) in enumerate(zip(path_states, actions, strict=True)):
            log_prob = torch.log_softmax(theta[state], -1)[action]
            surrogate = surrogate + log_prob * row[t] / len(paths)
    (estimate,) = torch.autograd.grad(surrogate, theta)
    torch.testing.assert_close(estimate, true_gradient(theta), atol=1e-12, rtol=0)
