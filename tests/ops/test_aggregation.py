"""Weights of tokens and trajectories, and invariance to how a batch is split."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.ops.losses import Aggregation, aggregate, loss_denominator

KINDS = get_args(Aggregation)


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw values, a mask and weights of five rows, one of them without tokens."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 6, generator=generator) < 0.6
    mask[2] = False
    return values, mask, torch.rand(5, generator=generator).double()


def denominator(mask: Tensor, kind: Aggregation) -> Tensor:
    """Count over rows that are trajectories."""
    return loss_denominator(mask, torch.arange(len(mask)), kind)


def total_of(
    values: Tensor,
    mask: Tensor,
    kind: Aggregation,
    total: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Aggregate rows that are trajectories, by default of equal weight."""
    weights = torch.ones_like(values[:, 0]) if weights is None else weights
    return aggregate(values, mask, mask.sum(1), kind, total, weights)


def test_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [10.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = {kind: float(total_of(values, mask, kind, denominator(mask, kind))) for kind in KINDS}
    assert found == {
        "token_mean": pytest.approx(19 / 4),
        "sequence_mean_token_mean": pytest.approx((3 + 10) / 2),
        "sequence_mean_token_sum": pytest.approx((9 + 10) / 2),
    }


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), place=st.integers(1, 4))
def test_parts_add_up_to_the_whole(kind: Aggregation, seed: int, place: int) -> None:
    """Whether split into micro-batches or across ranks."""
    values, mask, weights = batch(seed)
    total = denominator(mask[:place], kind) + denominator(mask[place:], kind)
    assert float(total) == float(denominator(mask, kind))
    parts = [
        total_of(values[at], mask[at], kind, total, weights[at])
        for at in (slice(None, place), slice(place, None))
    ]
    whole = total_of(values, mask, kind, total, weights)
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_effect(kind: Aggregation) -> None:
    values, mask, weights = batch(0)
    total = denominator(mask, kind)
    noisy = torch.where(mask, values, torch.full_like(values, torch.nan))
    wider = torch.nn.functional.pad(noisy, (0, 4), value=torch.inf)
    found = total_of(wider, torch.nn.functional.pad(mask, (0, 4)), kind, total, weights)
    torch.testing.assert_close(found, total_of(values, mask, kind, total, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_mask_gives_zero(kind: Aggregation) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert float(total_of(torch.ones(2, 3), mask, kind, denominator(mask, kind))) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: Aggregation) -> None:
    values, mask, weights = batch(1)
    total = denominator(mask, kind).double()
    assert torch.autograd.gradcheck(
        lambda x: total_of(x, mask, kind, total, weights), (values.requires_grad_(),)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_trajectory_weigh_as_if_they_were_one_row(kind: Aggregation) -> None:
    """Rows 0 and 3 are the two sequences of one trajectory, wherever the batch is cut."""
    values, mask, weights = batch(2)
    ids = torch.tensor([0, 1, 2, 0, 4])
    weights[3] = weights[0]
    tokens = mask.sum(1)
    tokens[[0, 3]] = tokens[0] + tokens[3]
    total = loss_denominator(mask, ids, kind)
    parts = sum(
        aggregate(values[at], mask[at], tokens[at], kind, total, weights[at])
        for at in (slice(None, 2), slice(2, None))
    )
    joined = torch.cat([values, values[[3, 1, 2, 0, 4]]], 1)[[0, 1, 2, 4]]
    other = mask[[3, 1, 2, 0, 4]] & (torch.arange(5) == 0)[:, None]
    whole = torch.cat([mask, other], 1)[[0, 1, 2, 4]]
    expected = total_of(joined, whole, kind, denominator(whole, kind), weights[[0, 1, 2, 4]])
    torch.testing.assert_close(parts, expected)
