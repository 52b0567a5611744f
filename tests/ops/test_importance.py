"""Importance weights against known expectations."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.losses import importance_ratio, truncated_importance_weights

_LOGITS = st.lists(st.floats(-4, 4), min_size=2, max_size=6)


def log_softmax(logits: list[float]) -> torch.Tensor:
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), 0)


def test_closed_forms() -> None:
    policy = torch.tensor([[0.6, 0.3, 0.1, 0.2]], dtype=torch.float64).log()
    sampler = torch.tensor([[0.2, 0.2, 0.2, 0.2]], dtype=torch.float64).log()
    weights = truncated_importance_weights(policy, sampler, 2.0)
    expected = torch.tensor([[2.0, 1.5, 0.5, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(weights, expected)


@given(st.data(), _LOGITS)
def test_without_truncation_the_samplers_expectation_is_the_policys(
    data: st.DataObject, logits: list[float]
) -> None:
    others = data.draw(st.lists(st.floats(-4, 4), min_size=len(logits), max_size=len(logits)))
    policy, sampler = log_softmax(logits), log_softmax(others)
    values = torch.arange(len(logits), dtype=torch.float64)
    weights = truncated_importance_weights(policy, sampler, math.exp(20))
    corrected = (sampler.exp() * weights * values).sum()
    torch.testing.assert_close(corrected, (policy.exp() * values).sum())


@given(_LOGITS, st.floats(1, 5))
def test_weights_are_bounded_and_grow_with_the_cap(logits: list[float], cap: float) -> None:
    policy = log_softmax(logits)
    sampler = policy.flip(0)
    weights = truncated_importance_weights(policy, sampler, cap)
    assert bool((weights > 0).all())
    assert float(weights.max()) <= cap
    assert bool((weights <= truncated_importance_weights(policy, sampler, cap + 1)).all())
    below = importance_ratio(policy, sampler) <= cap
    torch.testing.assert_close(weights[below], (policy - sampler).exp()[below])
    assert bool((weights[~below] == cap).all())


@given(_LOGITS, st.floats(1, 5))
def test_where_they_agree_the_weight_is_1(logits: list[float], cap: float) -> None:
    same = log_softmax(logits)
    assert bool((truncated_importance_weights(same, same, cap) == 1).all())


def test_a_token_impossible_for_the_sampler_stays_finite() -> None:
    ratio = importance_ratio(torch.zeros(1), torch.tensor([-1e9]))
    assert bool(ratio.isfinite().all())
