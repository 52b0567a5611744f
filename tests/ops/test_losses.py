"""Losses against hand-computed numbers and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms.policy_losses import (
    CISPO,
    GSPO,
    SAPO,
    Clip,
    ClipCov,
    KLCov,
    LogLikelihood,
    PolicyLoss,
)
from ragen_pl.ops.losses import (
    anchored_policy_loss,
    clipped_policy_loss,
    clipped_value_loss,
    clipped_weight_loss,
    distance_to_band,
    log_prob_and_entropy,
    sequence_log_ratio,
    sequence_policy_loss,
    soft_gate_loss,
)
from ragen_pl.ops.masked import explained_variance, outside_clip


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


def random_rows(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw log-probs, old ones near them, advantages and a mask, (3, 5)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (3, 5)
    old = torch.randn(shape, generator=generator, dtype=torch.float64)
    new = old + 0.4 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[:, 0] = True
    return new.requires_grad_(), old, advantages, mask


@given(st.integers(0, 10**6))
def test_gradients_of_the_clipped_losses_are_those_of_their_values(seed: int) -> None:
    """Numerically, in float64: no gradient is stopped where it should flow."""
    new, old, advantages, _ = random_rows(seed)

    def policy(x: Tensor) -> Tensor:
        return clipped_policy_loss(x, old, advantages, clip_low=0.2, clip_high=0.28).sum()

    def value(x: Tensor) -> Tensor:
        return clipped_value_loss(x, old, advantages, 0.5).sum()

    ratio = (new - old).detach()
    kinks = torch.tensor([0.8, 1.28, 3.0], dtype=torch.float64).log()
    if float((ratio[..., None] - kinks).abs().min()) > 1e-4:
        assert torch.autograd.gradcheck(policy, (new,))
    far = (ratio.abs() - 0.5).abs().min()
    near = old + ratio.clamp(-0.5, 0.5)
    ties = ((new.detach() - advantages).abs() - (near - advantages).abs())[ratio.abs() > 0.5].abs()
    if float(far) > 1e-4 and (not len(ties) or float(ties.min()) > 1e-4):
        assert torch.autograd.gradcheck(value, (new,))


@given(st.integers(0, 10**6), st.sampled_from([(3e-4, 4e-4), (0.1, 0.2), (0.9, 5.0)]))
def test_gspo_has_value_and_gradient_of_the_clipped_sequence_ratio(
    seed: int, bounds: tuple[float, float]
) -> None:
    """Eq. 5 of the paper, differentiated directly; advantages are a trajectory's there."""
    new, old, advantages, mask = random_rows(seed)
    of_row = advantages[:, :1].expand_as(advantages)
    low, high = bounds
    loss = sequence_policy_loss(new, old, of_row, mask, clip_low=low, clip_high=high)
    lengths = mask.sum(1)
    ours = ((loss * mask).sum(1) / lengths).mean()
    ratio = torch.exp(((new - old) * mask).sum(1) / lengths)
    a = of_row[:, 0]
    theirs = -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a).mean()
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    (mine,) = torch.autograd.grad(ours, new)
    (truth,) = torch.autograd.grad(theirs, new)
    torch.testing.assert_close(mine, truth, atol=1e-12, rtol=0)


@given(st.integers(0, 10**6))
def test_the_sequence_ratio_counts_sampled_tokens_only(seed: int) -> None:
    new, old, _, mask = random_rows(seed)
    noisy = torch.where(mask, new, torch.full_like(new, 1e6))
    torch.testing.assert_close(
        sequence_log_ratio(noisy, old, mask), sequence_log_ratio(new, old, mask)
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(0.5, 1.0, 0.8), (1.1, -2.0, 1.1), (4.0, 1.0, 1.28), (4.0, -1.0, 1.28)],
)
def test_cispo_bounds_the_weight_and_never_the_gradient(
    ratio: float, advantage: float, weight: float
) -> None:
    new = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old, a = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]).double()
    loss = clipped_weight_loss(new, old, a, clip_low=0.2, clip_high=0.28).sum()
    assert loss.item() == pytest.approx(-weight * advantage * math.log(ratio))
    (gradient,) = torch.autograd.grad(loss, new)
    assert gradient.item() == pytest.approx(-weight * advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -4.0, -2.0),  # 4/τ · 1/2 · A, and 4 · 1/4 · A
        (1.0, -1.0, 1.0, 1.0),
        (3.0, 1.0, -4 / (1 + math.exp(-2)), -0.4199743416140261 * 3),  # 4σ(2)σ(−2) = cosh(1)^−2
        (2.0, -1.0, 2 / (1 + math.exp(-2)), 0.4199743416140261 * 2),  # τ = 2 halves the way
    ],
)
def test_sapo_at_given_ratios(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    new = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old, a = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage]).double()
    found = soft_gate_loss(new, old, a, temperature_pos=1.0, temperature_neg=2.0).sum()
    (slope,) = torch.autograd.grad(found, new)
    assert (found.item(), slope.item()) == pytest.approx((loss, gradient))


@given(st.integers(0, 10**6))
def test_the_smooth_losses_have_the_gradient_of_their_value(seed: int) -> None:
    new, old, advantages, _ = random_rows(seed)

    def gate(x: Tensor) -> Tensor:
        return soft_gate_loss(x, old, advantages, temperature_pos=1.0, temperature_neg=3.0)

    def anchored(x: Tensor) -> Tensor:
        return anchored_policy_loss(x, old, advantages, coef=0.7)

    assert torch.autograd.gradcheck(gate, (new,))
    assert torch.autograd.gradcheck(anchored, (new,))


@given(st.integers(0, 10**6))
def test_sapo_of_low_temperature_is_the_unclipped_surrogate(seed: int) -> None:
    """In its gradient; in its value up to a constant per token."""
    new, old, advantages, _ = random_rows(seed)
    cold = 1e-6
    found = soft_gate_loss(new, old, advantages, temperature_pos=cold, temperature_neg=cold)
    plain = anchored_policy_loss(new, old, advantages, coef=0.0)
    constant = -advantages * (2 / cold - 1)
    torch.testing.assert_close(found - constant, plain, atol=1e-4, rtol=0)
    (mine,) = torch.autograd.grad(found.sum(), new)
    (truth,) = torch.autograd.grad(plain.sum(), new)
    torch.testing.assert_close(mine, truth, atol=1e-4, rtol=0)


def test_the_pull_of_kl_cov_leads_back_to_the_old_policy() -> None:
    """Descending it lowers a log-prob that has risen, and raises one that has fallen."""
    old = torch.zeros(2, dtype=torch.float64)
    new = torch.tensor([0.4, -0.4], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(anchored_policy_loss(new, old, old, coef=0.5).sum(), new)
    assert slope.tolist() == [0.5, -0.5]


def test_rounding_does_not_pull_at_full_strength() -> None:
    old = torch.zeros(2, dtype=torch.float64)
    new = torch.tensor([1e-6, -1e-6], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(anchored_policy_loss(new, old, old, coef=1.0).sum(), new)
    assert slope.tolist() == pytest.approx([1e-3, -1e-3])


def test_the_distance_to_a_band() -> None:
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.5, 0.9], requires_grad=True)
    found = distance_to_band(entropy, 0.2, 0.5)
    torch.testing.assert_close(found.detach(), torch.tensor([0.1, 0.0, 0.0, 0.0, 0.4]))
    (slope,) = torch.autograd.grad(found.sum(), entropy)
    assert slope[[0, 2, 4]].tolist() == [-1.0, 0.0, 1.0]


ALL = [Clip(), GSPO(), CISPO(), SAPO(), ClipCov(), KLCov(), LogLikelihood()]


@given(st.integers(0, 10**6), st.sampled_from(ALL))
def test_on_policy_every_loss_has_the_gradient_of_reinforce(seed: int, loss: PolicyLoss) -> None:
    """In the mean over each trajectory's tokens, for advantages that a trajectory shares."""
    new, _, advantages, mask = random_rows(seed)
    of_row = advantages[:, :1].expand_as(advantages)
    terms = loss(new, new.detach(), of_row, mask)
    assert not bool(terms.clipped.any())
    (gradient,) = torch.autograd.grad((terms.loss * mask).sum(), new)
    torch.testing.assert_close(gradient, -of_row * mask, atol=1e-12, rtol=0)


@pytest.mark.parametrize("loss", [Clip(), GSPO(), CISPO()])
def test_clipped_tokens_are_marked(loss: PolicyLoss) -> None:
    old, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    assert bool(loss(old + 0.9, old, old + 1, mask).clipped.all())
    assert not bool(loss(old, old, old + 1, mask).clipped.any())


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Clip(clip_low=1.5), "policy_loss.clip_low is 1.5"),
        (lambda: GSPO(clip_high=-0.1), "policy_loss.clip_high is -0.1"),
        (lambda: Clip(dual_clip=0.5), "policy_loss.dual_clip is 0.5"),
    ],
)
def test_invalid_bounds_are_refused(make: Callable[[], PolicyLoss], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        make()


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
    outside = outside_clip(new - old, clip_low=0.2, clip_high=0.28)
    assert outside.tolist() == [False, True, True]
    returns = torch.tensor([1.0, 3.0, 100.0])
    assert float(explained_variance(returns, returns, mask)) == 1.0
    assert float(explained_variance(torch.zeros(3), returns, mask)) == pytest.approx(0.0)
    assert float(explained_variance(returns, torch.ones(3), mask)) == 0.0


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e6])
def test_explained_variance_is_scale_free(unit: float) -> None:
    returns, mask = unit * torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, dtype=torch.bool)
    half = returns - 0.5 * (returns - returns.mean())
    assert float(explained_variance(half, returns, mask)) == pytest.approx(0.75)
    same = torch.full((3,), 0.1 * unit)
    assert float(explained_variance(torch.zeros(3), same, mask)) == 0.0
