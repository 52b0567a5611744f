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


def test_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [10.0, 99.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    found = {
        kind: float(aggregate(values, mask, kind, loss_denominator(mask, kind))) for kind in KINDS
    }
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
    total = loss_denominator(mask[:place], kind) + loss_denominator(mask[place:], kind)
    assert float(total) == float(loss_denominator(mask, kind))
    parts = [
        aggregate(values[at], mask[at], kind, total, weights[at])
        for at in (slice(None, place), slice(place, None))
    ]
    whole = aggregate(values, mask, kind, total, weights)
    torch.testing.assert_close(parts[0] + parts[1], whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_effect(kind: Aggregation) -> None:
    values, mask, weights = batch(0)
    total = loss_denominator(mask, kind)
    noisy = torch.where(mask, values, torch.full_like(values, torch.nan))
    wider = torch.nn.functional.pad(noisy, (0, 4), value=torch.inf)
    found = aggregate(wider, torch.nn.functional.pad(mask, (0, 4)), kind, total, weights)
    torch.testing.assert_close(found, aggregate(values, mask, kind, total, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_mask_gives_zero(kind: Aggregation) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    assert float(aggregate(torch.ones(2, 3), mask, kind, loss_denominator(mask, kind))) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: Aggregation) -> None:
    values, mask, weights = batch(1)
    total = loss_denominator(mask, kind).double()
    assert torch.autograd.gradcheck(
        lambda x: aggregate(x, mask, kind, total, weights), (values.requires_grad_(),)
    )
