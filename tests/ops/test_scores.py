"""Scores of groups: closed forms, units and invalid members."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.selection import group_mean, group_std, has_signal

rows = st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def test_group_std_is_the_sample_deviation_of_valid_members() -> None:
    returns = torch.tensor([[1.0, 3.0, 99.0], [2.0, 2.0, 2.0], [5.0, 0.0, 0.0]])
    valid = torch.tensor([[True, True, False], [True] * 3, [True, False, False]])
    std = group_std(returns, returns.abs(), valid)
    assert std[0] == pytest.approx(math.sqrt(2))
    assert std[1] == 0
    assert std[2].isnan()


def test_group_mean_is_over_valid_members() -> None:
    values = torch.tensor([[1.0, 3.0, 99.0], [5.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    valid = torch.tensor([[True, True, False], [True, False, False], [False] * 3])
    mean = group_mean(values, valid)
    assert mean[:2].tolist() == [2.0, 5.0]
    assert mean[2].isnan()


def test_nan_at_invalid_members_is_ignored() -> None:
    returns = torch.tensor([[1.0, 3.0, math.nan]])
    valid = torch.tensor([[True, True, False]])
    assert group_std(returns, returns, valid)[0] == pytest.approx(math.sqrt(2))
    assert group_mean(returns, valid)[0] == 2.0
    assert has_signal(returns, returns, valid)[0]


@given(rows, st.integers(-100, 100))
def test_a_shift_of_all_returns_keeps_the_std(returns: torch.Tensor, shift: int) -> None:
    alive, shifted = torch.ones_like(returns, dtype=torch.bool), returns + shift
    std = group_std(shifted, shifted.abs(), alive)
    assert torch.allclose(group_std(returns, returns.abs(), alive), std)


def test_signal_is_a_difference_above_a_millionth_of_the_summed_rewards() -> None:
    returns = torch.tensor([[0.0, 0.0], [1.0, 1.0 + 9e-7], [1.0, 1.0 + 2e-6], [0.0, 5.0]])
    returns, alive = returns.double(), torch.ones(4, 2, dtype=torch.bool)
    alive[3, 1] = False  # nobody to compare with
    assert has_signal(returns, returns, alive).tolist() == [False, False, True, False]
    assert not has_signal(returns, 3 * returns, alive).any()
    assert group_std(returns, returns, alive)[:3].tolist() == [0.0, 0.0, returns[2].std()]


def test_rounding_is_no_signal() -> None:
    same = torch.tensor([[0.1 + 0.2, 0.3]], dtype=torch.float64)
    assert same[0, 0] != same[0, 1]
    alive = torch.ones(1, 2, dtype=torch.bool)
    assert not has_signal(same, same, alive)[0]
    assert group_std(same, same, alive)[0] == 0.0


def test_no_return_and_no_group_carry_no_signal() -> None:
    none, alive = torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool)
    assert not has_signal(none, none, alive).any()
    assert not has_signal(none + 1, none, ~alive).any()
    empty = torch.zeros(0, 0)
    assert has_signal(empty, empty, empty.bool()).shape == (0,)


@given(rows, st.integers(-40, 40))
def test_the_unit_of_reward_does_not_matter(returns: torch.Tensor, exponent: int) -> None:
    alive = torch.ones_like(returns, dtype=torch.bool)
    one, other = (has_signal(r, r.abs(), alive) for r in (returns, returns * 2.0**exponent))
    assert torch.equal(one, other)


@given(rows)
def test_other_groups_do_not_matter(returns: torch.Tensor) -> None:
    alive = torch.ones_like(returns, dtype=torch.bool)
    alone = [bool(has_signal(row[None], row[None].abs(), alive[:1])) for row in returns]
    assert has_signal(returns, returns.abs(), alive).tolist() == alone
