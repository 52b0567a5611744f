"""What a group is judged by: closed forms, units and the dead."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.scores import carries_signal, group_mean, group_std

rows = st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def test_group_std_is_the_sample_deviation_of_the_survivors() -> None:
    returns = torch.tensor([[1.0, 3.0, 99.0], [2.0, 2.0, 2.0], [5.0, 0.0, 0.0]])
    survived = torch.tensor([[True, True, False], [True] * 3, [True, False, False]])
    std = group_std(returns, survived)
    assert std[0] == pytest.approx(math.sqrt(2))
    assert std[1] == 0
    assert std[2].isnan()


def test_group_mean_is_over_the_survivors() -> None:
    values = torch.tensor([[1.0, 3.0, 99.0], [5.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    survived = torch.tensor([[True, True, False], [True, False, False], [False] * 3])
    mean = group_mean(values, survived)
    assert mean[:2].tolist() == [2.0, 5.0]
    assert mean[2].isnan()


def test_nan_at_the_dead_does_not_matter() -> None:
    returns = torch.tensor([[1.0, 3.0, math.nan]])
    survived = torch.tensor([[True, True, False]])
    assert group_std(returns, survived)[0] == pytest.approx(math.sqrt(2))
    assert group_mean(returns, survived)[0] == 2.0
    assert carries_signal(returns, survived, 0.4)[0]


@given(rows, st.integers(-100, 100))
def test_a_shift_of_all_returns_leaves_the_spread(returns: torch.Tensor, shift: int) -> None:
    alive = torch.ones_like(returns, dtype=torch.bool)
    assert torch.allclose(group_std(returns, alive), group_std(returns + shift, alive))


def test_signal_is_a_spread_beyond_a_share_of_the_largest_return() -> None:
    returns = torch.tensor([[0.0, 0.0], [10.0, 10.1], [10.0, 12.0], [0.0, 5.0]])
    alive = torch.ones(4, 2, dtype=torch.bool)
    alive[3, 1] = False  # nobody to compare with; its 5 is not among the returns
    assert carries_signal(returns, alive, 1e-9).tolist() == [False, True, True, False]
    # The spreads are 0.0707 and 1.414; the largest return is 12.
    assert carries_signal(returns, alive, 0.005).tolist() == [False, True, True, False]
    assert carries_signal(returns, alive, 0.006).tolist() == [False, False, True, False]
    assert carries_signal(returns, alive, 0.12).tolist() == [False] * 4


def test_what_rounding_leaves_is_no_signal() -> None:
    same = [0.1 + 0.2, 0.3]
    assert same[0] != same[1]
    alive = torch.ones(1, 2, dtype=torch.bool)
    assert not carries_signal(torch.tensor([same], dtype=torch.float64), alive, 1e-9)[0]


def test_no_return_and_no_group_carry_no_signal() -> None:
    assert not carries_signal(torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool), 1e-9).any()
    assert carries_signal(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool), 1e-9).shape == (
        0,
    )


@given(rows, st.integers(-40, 40))
def test_the_unit_of_reward_does_not_matter(returns: torch.Tensor, exponent: int) -> None:
    alive = torch.ones_like(returns, dtype=torch.bool)
    one, other = (carries_signal(r, alive, 0.1) for r in (returns, returns * 2.0**exponent))
    assert torch.equal(one, other)


def test_a_bad_epsilon_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon is 1"):
        carries_signal(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), 1.0)
