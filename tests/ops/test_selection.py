"""The filter's rule: examples, and what holds for any scores."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.selection import ZERO_STD, group_std, keep_top_fraction

# Distinct and well apart, so that an order is not decided by rounding.
distinct_scores = st.lists(st.integers(1, 10_000), min_size=1, max_size=24, unique=True).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
fractions = st.floats(0.01, 1.0)


def test_group_std_is_the_sample_deviation_of_the_survivors() -> None:
    returns = torch.tensor([[1.0, 3.0, 99.0], [2.0, 2.0, 2.0], [5.0, 0.0, 0.0]])
    survived = torch.tensor([[True, True, False], [True] * 3, [True, False, False]])
    std = group_std(returns, survived)
    assert std[0] == pytest.approx(math.sqrt(2))
    assert std[1] <= ZERO_STD
    assert std[2].isnan()


def test_nan_at_the_dead_does_not_matter() -> None:
    returns = torch.tensor([[1.0, 3.0, math.nan]])
    survived = torch.tensor([[True, True, False]])
    assert group_std(returns, survived)[0] == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize(
    ("fraction", "include_zero", "kept"),
    [
        (0.25, False, [3, 5]),
        (0.5, False, [2, 3, 4, 5]),
        (0.75, False, [2, 3, 4, 5]),
        (0.75, True, [0, 1, 2, 3, 4, 5]),
        (0.01, False, [3]),
        (1.0, False, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_examples(fraction: float, include_zero: bool, kept: list[int]) -> None:
    scores = torch.tensor([0.0, 0.0, 1.5, 5.6, 4.2, 4.4, math.nan, 0.0])
    mask = keep_top_fraction(scores, fraction, include_zero=include_zero)
    assert mask.nonzero().flatten().tolist() == kept


def test_ties_go_to_the_earlier_group() -> None:
    assert keep_top_fraction(torch.ones(4), 0.5).tolist() == [True, True, False, False]


def test_nothing_is_kept_of_groups_without_signal() -> None:
    assert not keep_top_fraction(torch.zeros(4), 0.5).any()


def test_rounding_does_not_cost_a_group() -> None:
    assert int(keep_top_fraction(torch.arange(1.0, 101.0), 0.29).sum()) == 29


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5])
def test_a_bad_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="keep_fraction"):
        keep_top_fraction(torch.ones(2), fraction)


@given(distinct_scores, fractions, st.randoms(use_true_random=False))
def test_permutation_equivariance(scores: torch.Tensor, fraction: float, random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted = keep_top_fraction(scores[order], fraction)
    assert torch.equal(permuted, keep_top_fraction(scores, fraction)[order])


@given(distinct_scores, fractions, fractions)
def test_monotone_in_the_fraction(scores: torch.Tensor, a: float, b: float) -> None:
    fewer = keep_top_fraction(scores, min(a, b))
    more = keep_top_fraction(scores, max(a, b))
    assert bool((more | ~fewer).all())


@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=2, max_size=12),
    st.integers(-100, 100),
    fractions,
)
def test_a_shift_of_all_returns_changes_nothing(
    rows: list[list[int]], shift: int, fraction: float
) -> None:
    returns = torch.tensor(rows, dtype=torch.float64)
    alive = torch.ones_like(returns, dtype=torch.bool)
    before, after = group_std(returns, alive), group_std(returns + shift, alive)
    assert torch.allclose(before, after)
    # Rounded, so that rounding errors do not decide between equal groups.
    assert torch.equal(
        keep_top_fraction(before.round(decimals=6), fraction),
        keep_top_fraction(after.round(decimals=6), fraction),
    )
