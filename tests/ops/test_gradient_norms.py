"""Buckets are quantiles; norms are those of gradients known in closed form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.gradient_norms import gradient_norms, quantile_buckets


def test_buckets_are_quantiles() -> None:
    scores = torch.tensor([0.3, 0.1, 0.6, 0.2, 0.5, 0.4])
    assert quantile_buckets(scores, 3).tolist() == [1, 0, 2, 0, 2, 1]
    assert quantile_buckets(scores, 1).tolist() == [0] * 6
    assert quantile_buckets(scores, 12).tolist() == [4, 0, 10, 2, 8, 6]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5]), min_size=1, max_size=20), st.data())
def test_buckets_respect_order_and_ties(values: list[float], data: st.DataObject) -> None:
    num = data.draw(st.integers(1, 8))
    order = data.draw(st.permutations(range(len(values))))
    scores = torch.tensor(values)
    buckets = quantile_buckets(scores, num)
    assert bool((buckets >= 0).all() & (buckets < num).all())
    for value, bucket in zip(values, buckets.tolist(), strict=True):
        for other, its in zip(values, buckets.tolist(), strict=True):
            assert (value < other) <= (bucket <= its)
            assert (value == other) <= (bucket == its)
    assert quantile_buckets(scores[list(order)], num).tolist() == buckets[list(order)].tolist()


def test_norms_are_those_of_the_summed_gradient() -> None:
    weight = torch.ones(2, dtype=torch.float64, requires_grad=True)
    unused = torch.ones(3, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.full((2,), 7.0, dtype=torch.float64)
    data = [torch.tensor([3.0, 1.0]), torch.tensor([0.0, 3.0])]
    parts = ({"linear": (weight * x).sum(), "square": (weight**2 * x).sum()} for x in data)
    norms = gradient_norms(("linear", "square"), parts, [weight, unused], lambda g: g)
    assert norms == pytest.approx({"linear": 5.0, "square": 10.0})
    assert weight.grad.tolist() == [7.0, 7.0]
    twice = gradient_norms(
        ("linear",), [{"linear": (weight * data[0]).sum()}], [weight], lambda g: 2 * g
    )
    assert twice["linear"] == pytest.approx(2 * 10**0.5)


def test_no_parts_give_zeros() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert gradient_norms(("a",), [], [weight], lambda g: g) == {"a": 0.0}
