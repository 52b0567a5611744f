"""Check losses against hand-worked numbers and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.ops.diagnostics import approx_kl, clip_fraction, explained_variance
from ragen_pl.ops.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    kl_estimate,
    log_prob_and_entropy,
)


def policy_loss(ratio: float, advantage: float, dual: float | None = 3.0) -> tuple[float, float]:
    """Return the loss at one ratio and its derivative by the log-prob."""
    log_prob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss = clipped_policy_loss(
        log_prob,
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.28,
        dual_clip=dual,
    ).sum()
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.27, 1.0, -1.27, -1.27),  # below the higher bound: still learning
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),  # a good token that became unlikely may come back
        (0.5, -1.0, 0.8, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (5.0, -1.0, 3.0, 0.0),  # dual clip
    ],
)
def test_clipped_policy_loss(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert policy_loss(ratio, advantage) == pytest.approx((loss, gradient))


def test_without_dual_clip_the_loss_grows() -> None:
    assert policy_loss(5.0, -1.0, dual=None) == pytest.approx((5.0, 5.0))


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_kl_estimate_is_never_negative(a: float, b: float) -> None:
    assert float(kl_estimate(torch.tensor([a]), torch.tensor([b]))) >= -1e-6


def test_kl_estimate_is_unbiased() -> None:
    """Its expectation under the policy is KL(policy ‖ reference), exactly, by enumeration."""
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    estimate = (p * kl_estimate(p.log(), q.log())).sum()
    assert float(estimate) == pytest.approx(float((p * (p / q).log()).sum()))


def test_value_loss_takes_the_worse_of_clipped_and_not() -> None:
    values, old, returns = torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([2.5])
    assert clipped_value_loss(values, old, returns, None).item() == pytest.approx(0.125)
    assert clipped_value_loss(values, old, returns, 0.5).item() == pytest.approx(2.0)


def test_log_prob_and_entropy_of_a_uniform_distribution() -> None:
    log_prob, entropy = log_prob_and_entropy(torch.zeros(2, 8), torch.tensor([3, 5]))
    assert log_prob.tolist() == pytest.approx([-math.log(8)] * 2)
    assert entropy.tolist() == pytest.approx([math.log(8)] * 2)


def test_diagnostics() -> None:
    mask = torch.tensor([True, True, False])
    new, old = torch.tensor([0.0, math.log(1.5), 9.0]), torch.zeros(3)
    assert float(clip_fraction(new, old, mask, clip_low=0.2, clip_high=0.28)) == 0.5
    assert float(approx_kl(new, old, mask)) == pytest.approx((0.5 - math.log(1.5)) / 2)
    returns = torch.tensor([1.0, 3.0, 100.0])
    assert float(explained_variance(returns, returns, mask)) == 1.0
    assert float(explained_variance(torch.zeros(3), returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(returns, torch.ones(3), mask)) == 0.0
