"""The KL estimators, against an enumerated distribution."""

from __future__ import annotations

import math
from typing import Any, cast, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms.config import KLPenalty
from ragen_pl.ops.losses import KLEstimator, kl_estimate

Q = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)


def policy() -> tuple[Tensor, Tensor]:
    """Return logits that require a gradient and the log-probs they give."""
    logits = torch.tensor([1.0, 0.2, -0.9], dtype=torch.float64, requires_grad=True)
    return logits, torch.log_softmax(logits, -1)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: KLEstimator) -> None:
    _, log_p = policy()
    p = log_p.exp()
    mean = (p * kl_estimate(log_p, Q.log(), estimator)).sum()
    assert float(mean) == pytest.approx(float(divergence(p, Q)))


def test_k2_is_half_the_square() -> None:
    _, log_p = policy()
    found = kl_estimate(log_p, Q.log(), "k2")
    torch.testing.assert_close(found, (log_p - Q.log()) ** 2 / 2)


@given(st.floats(-3, 3), st.floats(-3, 3), st.sampled_from(["k2", "k3"]))
def test_k2_and_k3_are_never_negative(a: float, b: float, estimator: KLEstimator) -> None:
    assert float(kl_estimate(torch.tensor([a]), torch.tensor([b]), estimator)) >= -1e-6


@pytest.mark.parametrize("estimator", get_args(KLEstimator))
def test_zero_for_equal_policies_and_finite_far_apart(estimator: KLEstimator) -> None:
    at = torch.tensor([-2.0])
    assert float(kl_estimate(at, at, estimator)) == 0.0
    assert bool(kl_estimate(at, at + 1000, estimator).isfinite().all())


@pytest.mark.parametrize("estimator", get_args(KLEstimator))
def test_the_gradient_of_each_as_a_loss(estimator: KLEstimator) -> None:
    """Sampled tokens carry no gradient by themselves: only the log-prob of each does."""
    logits, log_p = policy()
    weights = log_p.exp().detach()
    loss = (weights * kl_estimate(log_p, Q.log(), estimator)).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    other, log_again = policy()
    p = log_again.exp()
    truth = {
        "k1": 0.0 * p.sum(),
        "k2": divergence(p, Q),
        "k3": divergence(Q, p),
    }[estimator]
    (expected,) = torch.autograd.grad(truth, other)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("estimator", get_args(KLEstimator))
def test_gradients_are_those_of_the_values(estimator: KLEstimator) -> None:
    _, log_p = policy()
    at = log_p.detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, Q.log(), estimator), (at,))


def test_another_name_is_refused() -> None:
    at = torch.zeros(1)
    with pytest.raises(ValueError, match=r"kl.estimator is 'k4'; it must be one of k1, k2, k3"):
        kl_estimate(at, at, cast(Any, "k4"))
    with pytest.raises(ValueError, match=r"kl.estimator is 'low_var_kl'"):
        KLPenalty(estimator=cast(Any, "low_var_kl"))


@pytest.mark.parametrize("difference", [-1e4, -50.0, -20.0, -3.0, 12.0, 50.0, 1e4])
def test_k3_is_bounded_for_extreme_tokens(difference: float) -> None:
    log_probs = torch.tensor([difference], requires_grad=True)
    value = kl_estimate(log_probs, torch.zeros(1), "k3")
    (gradient,) = torch.autograd.grad(value, log_probs)
    assert (float(value.detach()), float(gradient)) == (10.0, 0.0)


@given(st.floats(-2.5, 10.9))
def test_k3_is_exact_inside_its_bound(difference: float) -> None:
    log_probs = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    value = kl_estimate(log_probs, torch.zeros(1, dtype=torch.float64), "k3")
    (gradient,) = torch.autograd.grad(value, log_probs)
    assert float(value.detach()) == pytest.approx(math.exp(-difference) + difference - 1, abs=1e-12)
    assert float(gradient) == pytest.approx(1 - math.exp(-difference))
