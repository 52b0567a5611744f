"""The subset of maximal variance: by hand, and against every subset."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.selection import max_variance_subset


def chosen(returns: list[float], count: int, dead: tuple[int, ...] = ()) -> list[int]:
    valid = torch.tensor([[n not in dead for n in range(len(returns))]])
    mask = max_variance_subset(torch.tensor([returns], dtype=torch.float64), valid, count)
    return torch.nonzero(mask[0])[:, 0].tolist()


@pytest.mark.parametrize(
    ("returns", "count", "members"),
    [
        ([3.0, 0.0, 1.0, 9.0], 2, [1, 3]),
        ([0.0, 0.0, 0.0, 1.0], 2, [2, 3]),
        ([0.0, 10.0, 9.0, 1.0], 3, [0, 1, 2]),  # as varied with the two lowest: high returns win
        ([5.0, 5.0, 5.0], 2, [1, 2]),
        ([1.0, 2.0], 4, [0, 1]),
    ],
)
def test_examples(returns: list[float], count: int, members: list[int]) -> None:
    assert chosen(returns, count) == members


def test_invalid_members_are_never_chosen() -> None:
    assert chosen([99.0, 0.0, 1.0, 2.0, math.nan], 2, dead=(0, 4)) == [1, 3]
    assert chosen([99.0, 0.0, 1.0], 2, dead=(0,)) == [1, 2]
    assert chosen([99.0, 0.0], 2, dead=(0, 1)) == []


@given(
    st.lists(st.integers(-20, 20).map(float), min_size=2, max_size=8),
    st.integers(2, 8),
)
def test_no_subset_varies_more(returns: list[float], count: int) -> None:
    members = chosen(returns, count)
    assert len(members) == min(count, len(returns))
    values = torch.tensor(returns, dtype=torch.float64)
    best = max(
        float(values[list(c)].var()) for c in combinations(range(len(returns)), len(members))
    )
    assert float(values[members].var()) == pytest.approx(best, abs=1e-9)


@given(
    st.lists(st.integers(-999, 999), min_size=3, max_size=8, unique=True),
    st.randoms(use_true_random=False),
)
def test_permutation_equivariance(returns: list[int], random: object) -> None:
    order = list(range(len(returns)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = {returns[n] for n in chosen([float(r) for r in returns], 3)}
    moved = [returns[n] for n in order]
    assert {moved[n] for n in chosen([float(r) for r in moved], 3)} == plain


def test_fewer_than_two_are_refused() -> None:
    with pytest.raises(ValueError, match="count is 1"):
        chosen([1.0, 2.0], 1)
