"""Every policy loss: its definition and gradient per token, and its invariants.

A new class must be added to the table in ``tests.support.algorithms``, with its definition here.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms import policy_losses
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
from ragen_pl.types import TrainingBatch
from tests.support.algorithms import LOSSES
from tests.support.toy_worlds import collection, draws, padded

each = pytest.mark.parametrize("name", LOSSES)
seeds = st.integers(0, 10**6)
few = settings(max_examples=5)


def test_every_policy_loss_is_in_the_table() -> None:
    kinds = {
        kind
        for _, kind in inspect.getmembers(policy_losses, inspect.isclass)
        if issubclass(kind, PolicyLoss) and not inspect.isabstract(kind)
    }
    assert {type(loss) for loss in LOSSES.values()} == kinds


# --- by definition ------------------------------------------------------------------------------


def surrogate(loss: Clip, ratio: float, advantage: float) -> tuple[float, float]:
    """Return PPO's loss at a ratio and its derivative with respect to the log-probability."""
    if advantage >= 0:
        flat = ratio > 1 + loss.clip_high
        value = -advantage * min(ratio, 1 + loss.clip_high)
    else:
        bound = math.inf if loss.dual_clip is None else loss.dual_clip
        flat = ratio < 1 - loss.clip_low or ratio > bound
        value = -advantage * min(max(ratio, 1 - loss.clip_low), bound)
    return value, 0.0 if flat else -advantage * ratio


def by_definition(
    loss: PolicyLoss, ratio: float, of_row: float, log_prob: float, advantage: float
) -> tuple[float, float]:
    """Return one token's loss and its derivative.

    Args:
        of_row: The ratio of the whole trajectory.
    """
    if isinstance(loss, Clip):
        return surrogate(loss, ratio, advantage)
    if isinstance(loss, GSPO):
        return surrogate(Clip(loss.clip_low, loss.clip_high, None), of_row, advantage)
    if isinstance(loss, ClipCov):
        return surrogate(Clip(loss.clip_low, loss.clip_high, None), ratio, advantage)
    if isinstance(loss, KLCov):
        return -advantage * ratio, -advantage * ratio
    if isinstance(loss, SAPO):
        tau = loss.temperature_pos if advantage > 0 else loss.temperature_neg
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return -advantage * 4 / tau * gate, -advantage * 4 * gate * (1 - gate) * ratio
    weight = 1.0
    if isinstance(loss, CISPO):
        weight = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
    else:
        assert isinstance(loss, LogLikelihood), f"{type(loss).__name__} has no definition here"
    return -weight * advantage * log_prob, -weight * advantage


@each
@given(seed=seeds)
@few
def test_value_and_gradient_are_those_of_the_definition(name: str, seed: int) -> None:
    loss, rollout = LOSSES[name], collection(seed, sizes=(4, 2))
    new, old, advantages = draws(rollout, seed)
    terms = loss(new.requires_grad_(), old, advantages, rollout.loss_mask)
    (slopes,) = torch.autograd.grad(terms.loss[rollout.loss_mask].sum(), new)
    for row, at in enumerate(rollout.loss_mask):
        moved = (new - old).detach()[row, at]
        whole = math.exp(float(moved.mean()))
        expected = [
            by_definition(loss, *numbers)
            for numbers in zip(
                moved.exp().tolist(),
                [whole] * len(moved),
                new.detach()[row, at].tolist(),
                advantages[row, at].tolist(),
                strict=True,
            )
        ]
        found = torch.stack([terms.loss.detach()[row, at], slopes[row, at]], 1)
        torch.testing.assert_close(
            found, torch.tensor(expected, dtype=torch.float64), atol=1e-9, rtol=1e-9
        )


@each
@pytest.mark.parametrize("advantage", [-1.5, 1.5])
def test_exactly_the_ratios_outside_the_bounds_are_marked_as_clipped(
    name: str, advantage: float
) -> None:
    loss, mask = LOSSES[name], torch.ones(1, 1, dtype=torch.bool)
    old = torch.zeros(1, 1, dtype=torch.float64)
    low, high = getattr(loss, "clip_low", 1.0), getattr(loss, "clip_high", math.inf)
    for ratio in (1e-3, 1 - low + 1e-6, 1.0, 1 + high - 1e-6, 1 + high + 1e-6, 1 - low - 1e-6):
        if not 0 < ratio < math.inf:
            continue
        terms = loss(old + math.log(ratio), old, old + advantage, mask)
        assert bool(terms.clipped) == (not 1 - low <= ratio <= 1 + high)


# --- invariants ---------------------------------------------------------------------------------


@each
@given(seed=seeds, columns=st.integers(0, 3))
@few
def test_order_padding_and_values_outside_the_mask_do_not_matter(
    name: str, seed: int, columns: int
) -> None:
    loss, rollout = LOSSES[name], collection(seed)
    mask, drawn = rollout.loss_mask, draws(rollout, seed)
    plain = loss(*drawn, mask).loss[mask]
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(seed))
    wider = padded(rollout.rows(order), columns).loss_mask

    def moved(tensor: Tensor, noise: float) -> Tensor:
        wide = torch.nn.functional.pad(tensor[order], (0, columns))
        return wide.masked_fill(~wider, noise)

    new, old, advantages = drawn
    found = loss(moved(new, 9.0), moved(old, -9.0), moved(advantages, 7.0), wider).loss
    back = torch.argsort(order)
    torch.testing.assert_close(found[back][wider[back]], plain, atol=1e-12, rtol=0)


@each
@given(seed=seeds, context=st.integers(1, 9))
@few
def test_the_length_of_observations_does_not_matter(name: str, seed: int, context: int) -> None:
    short, long = collection(seed), collection(seed, context=context)
    found = []
    for rollout in (short, long):
        new, old, advantages = draws(rollout, seed)
        terms = LOSSES[name](new, old, advantages, rollout.loss_mask)
        found.append(terms.loss[rollout.loss_mask])
    one, other = found
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@each
@given(seed=seeds, scale=st.floats(0.1, 10))
@few
def test_the_loss_is_proportional_to_the_advantages(name: str, seed: int, scale: float) -> None:
    loss, rollout = LOSSES[name], collection(seed)
    new, old, advantages = draws(rollout, seed)
    one = loss(new, old, advantages, rollout.loss_mask).loss
    torch.testing.assert_close(
        loss(new, old, scale * advantages, rollout.loss_mask).loss, scale * one
    )


@each
def test_ratios_beyond_all_bounds_stay_finite(name: str) -> None:
    old, mask = torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool)
    for far in (-1e4, 1e4):
        new = (old + far).requires_grad_()
        terms = LOSSES[name](new, old, torch.tensor([[1.0, -1.0]] * 2), mask)
        (slope,) = torch.autograd.grad(terms.loss.sum(), new)
        assert bool(terms.loss.isfinite().all() & slope.isfinite().all())


# --- learning -----------------------------------------------------------------------------------


def probability_of_the_best(loss: PolicyLoss, sign: float, *, chosen: bool = False) -> float:
    """Train a policy of four actions, of which one is rewarded; two updates per collection.

    Args:
        sign: That of the advantages.
        chosen: Whether every token has the loss of chosen ones.
    """
    draw = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, requires_grad=True)
    for _ in range(40):
        old_policy = torch.log_softmax(logits, 0).detach()
        actions = torch.multinomial(old_policy.exp(), 128, replacement=True, generator=draw)
        rewards = (actions == 2).float()
        advantages = sign * (rewards - rewards.mean())[:, None] / (rewards.std() + 1e-6)
        old, mask = old_policy[actions][:, None], torch.ones(128, 1, dtype=torch.bool)
        for _ in range(2):
            new = torch.log_softmax(logits, 0)[actions][:, None]
            values = loss(new, old, advantages, mask).loss
            if chosen:
                values = torch.where(mask, loss.loss_of_chosen(new, old, advantages), values)
            (slope,) = torch.autograd.grad(values.mean(), logits)
            logits = (logits - 0.3 * slope).detach().requires_grad_()
    return float(torch.softmax(logits.detach(), 0)[2])


@each
def test_every_loss_learns_the_rewarded_action_and_unlearns_it_with_a_flipped_sign(
    name: str,
) -> None:
    assert probability_of_the_best(LOSSES[name], 1.0) > 0.8
    assert probability_of_the_best(LOSSES[name], -1.0) < 0.1


def test_chosen_tokens_are_learned_more_slowly_or_not_at_all() -> None:
    free, pulled = KLCov(coef=0.0), KLCov(coef=0.5)
    fast, slow = (probability_of_the_best(each, 1.0, chosen=True) for each in (free, pulled))
    assert fast == probability_of_the_best(free, 1.0)
    assert 0.25 < slow < fast
    assert probability_of_the_best(ClipCov(), 1.0, chosen=True) == 0.25


# --- the tokens of a share ----------------------------------------------------------------------


def optimizer_batch(seed: int) -> TrainingBatch:
    rollout = collection(seed, sizes=(4, 3, 2))
    _, old, advantages = draws(rollout, seed)
    zeros = torch.zeros_like(old)
    return TrainingBatch(rollout, old, zeros, advantages, zeros)


def products(batch: TrainingBatch) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the places of the kept tokens, and their covariances, in plain Python."""
    kept = batch.rollout.loss_mask & (batch.rollout.policy_weights > 0)[:, None]
    places = [(int(row), int(column)) for row, column in kept.nonzero()]
    log_probs, advantages = (
        [float(values[place]) for place in places]
        for values in (batch.old_log_probs, batch.advantages)
    )
    one, other = fmean(log_probs), fmean(advantages)
    return places, [(p - one) * (a - other) for p, a in zip(log_probs, advantages, strict=True)]


def places_of(chosen: Tensor) -> set[tuple[int, int]]:
    return {(int(row), int(column)) for row, column in chosen.nonzero()}


@given(seed=seeds, share=st.floats(0.01, 1.0))
@few
def test_kl_cov_chooses_the_tokens_of_largest_covariance(seed: int, share: float) -> None:
    batch = optimizer_batch(seed)
    places, values = products(batch)
    ranked = sorted(zip(values, places, strict=True), reverse=True)
    wanted = {place for _, place in ranked[: max(1, math.floor(share * len(places) + 1e-6))]}
    assert places_of(KLCov(share).choose(batch)) == (wanted if places else set())


@given(seed=seeds)
@few
def test_clip_cov_draws_within_its_bounds(seed: int) -> None:
    batch, loss = optimizer_batch(seed), ClipCov(0.2, 0.1, 2.0)
    places, values = products(batch)
    within = {place for place, x in zip(places, values, strict=True) if 0.1 <= x <= 2.0}
    chosen = places_of(loss.choose(batch))
    assert chosen <= within
    assert len(chosen) == min(len(within), max(1, math.floor(0.2 * len(places) + 1e-6)))
    assert places_of(loss.choose(batch)) == chosen, "a resumed run draws the same"


def test_a_share_of_0_chooses_nothing() -> None:
    batch = optimizer_batch(0)
    assert not bool(ClipCov(0.0, -9.0, 9.0).choose(batch).any())
    assert not bool(KLCov(0.0).choose(batch).any())


def test_only_losses_that_choose_have_a_loss_for_chosen_tokens() -> None:
    batch = optimizer_batch(0)
    for loss in LOSSES.values():
        if loss.choose(batch) is None:
            with pytest.raises(NotImplementedError, match=type(loss).__name__):
                loss.loss_of_chosen(batch.values, batch.values, batch.values)


Make = Callable[[], PolicyLoss]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(clip_low=-0.1), "clip_low is -0.1"),
        (lambda: Clip(dual_clip=1.0), "dual_clip is 1.0"),
        (lambda: CISPO(clip_high=-1.0), "clip_high is -1.0"),
        (lambda: GSPO(clip_low=1.1), "clip_low is 1.1"),
        (lambda: SAPO(temperature_pos=0.0), "temperature_pos is 0.0"),
        (lambda: SAPO(temperature_neg=math.inf), "temperature_neg is inf"),
        (lambda: ClipCov(share=1.1), "share is 1.1"),
        (lambda: ClipCov(clip_high=-1.0), "clip_high is -1.0"),
        (lambda: ClipCov(cov_low=2.0, cov_high=2.0), "cov_low is 2.0 and cov_high is 2.0"),
        (lambda: KLCov(share=-0.1), "share is -0.1"),
        (lambda: KLCov(coef=-1.0), "coef is -1.0"),
    ],
)
def test_invalid_bounds_are_refused(make: Make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
