"""Policy and value objective against their definitions, in value and gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms.coefficients import EntropyBand, LossCoefficients
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, KLPenalty
from ragen_pl.algorithms.estimators import CriticConfig
from ragen_pl.algorithms.policy_losses import Clip, ClipCov, KLCov
from ragen_pl.models.policy import PolicyOutput
from ragen_pl.ops.losses import KLEstimator, log_prob_and_entropy
from ragen_pl.training.update import LossDenominators, PolicyObjective, ValueObjective
from ragen_pl.types import PolicyBatch, RolloutBatch, TrainingBatch
from tests.support.algorithms import AGGREGATIONS, LOSSES
from tests.support.toy_worlds import at_tokens, collection, draws


def weighed(values: Tensor, rollout: RolloutBatch, aggregation: str, *, soft: bool) -> float:
    """Aggregate by the definition, trajectory by trajectory."""
    kept = [row for row in range(len(rollout)) if rollout.policy_weights[row] > 0]
    own: list[list[float]] = [values[row, rollout.loss_mask[row]].tolist() for row in kept]
    weights = [float(rollout.policy_weights[row]) if soft else 1.0 for row in kept]
    if aggregation == "sequence_mean_token_mean":
        own = [[sum(numbers) / len(numbers)] for numbers in own]
    count = len(kept) if "sequence" in aggregation else sum(map(len, own))
    return sum(w * sum(numbers) for w, numbers in zip(weights, own, strict=True)) / count


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("estimator", get_args(KLEstimator))
@pytest.mark.parametrize("name", LOSSES)
def test_the_objective_is_surrogate_less_entropy_plus_divergence(
    name: str, aggregation: str, estimator: KLEstimator
) -> None:
    """Kept trajectories enter the surrogate with their weights, and the other terms equally."""
    rollout, kl = collection(11), KLPenalty(0.5, estimator)
    algorithm = Algorithm(policy_loss=LOSSES[name], aggregation=aggregation, kl=kl)  # type: ignore[arg-type]
    new, old, advantages = draws(rollout, 11)
    entropy, reference = at_tokens(rollout, 12).abs(), new + 0.3 * at_tokens(rollout, 13)
    at = rollout.policy_weights > 0
    zeros = torch.zeros_like(old)
    part = PolicyBatch(rollout, old, zeros, advantages, zeros, chosen=None).rows(at)
    objective = PolicyObjective(
        algorithm,
        LossCoefficients(kl=0.7, entropy=0.3),
        LossDenominators.of(rollout, algorithm.aggregation),
    )
    loss, metrics = objective(PolicyOutput(new[at], entropy[at], None), part, reference[at])
    terms = LOSSES[name](new, old, advantages, rollout.loss_mask)
    d = new - reference
    divergence = {"k1": d, "k2": d.square() / 2, "k3": (-d).exp() + d - 1}[estimator]
    policy = weighed(terms.loss, rollout, aggregation, soft=True)
    bonus = weighed(entropy, rollout, aggregation, soft=False)
    penalty = weighed(divergence, rollout, aggregation, soft=False)
    assert float(loss) == pytest.approx(policy - 0.3 * bonus + 0.7 * penalty)
    tokens = [
        weighed(each, rollout, "token_mean", soft=False)
        for each in (
            entropy,
            divergence,
            terms.clipped.double(),
            ((new - old).exp() - 1 - (new - old)).clamp(max=10.0),
            (old - rollout.sampled_log_probs).abs(),
        )
    ]
    assert metrics.tolist() == pytest.approx([policy, *tokens], rel=1e-5)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_band_takes_each_tokens_distance_off_the_bonus(aggregation: str) -> None:
    rollout = collection(11)
    algorithm = Algorithm(aggregation=aggregation)  # type: ignore[arg-type]
    entropy, zeros = at_tokens(rollout, 12).abs(), torch.zeros_like(rollout.rewards)
    at = rollout.policy_weights > 0
    part = PolicyBatch(rollout, zeros, zeros, zeros, zeros, chosen=None).rows(at)
    denominators = LossDenominators.of(rollout, algorithm.aggregation)
    output = PolicyOutput(zeros[at], entropy[at], None)

    def loss(weight: float | None) -> float:
        band = None if weight is None else EntropyBand(0.4, 0.9, weight)
        fixed = LossCoefficients(kl=0.0, entropy=0.3, entropy_band=band)
        return float(PolicyObjective(algorithm, fixed, denominators)(output, part)[0])

    distances = torch.where(
        rollout.loss_mask, (0.4 - entropy).clamp(min=0) + (entropy - 0.9).clamp(min=0), 0.0
    )
    bonus, penalty = (
        weighed(each, rollout, aggregation, soft=False) for each in (entropy, distances)
    )
    assert penalty > 0.05
    assert loss(2.0) == pytest.approx(-0.3 * (bonus - 2.0 * penalty))
    assert loss(0.0) == loss(None), "a band of no weight is none"


@pytest.mark.parametrize("start", [3.0, 0.1])
def test_entropy_ends_at_the_upper_end_of_a_band_from_either_side(start: float) -> None:
    """Up to there the bonus raises it; above, the penalty exceeds the bonus."""
    rollout = collection(11)
    rollout = rollout.rows(rollout.policy_weights > 0)
    logits = start * torch.tensor([1.0, 0.0, -1.0, 0.5], dtype=torch.float64)
    zeros = torch.zeros_like(rollout.rewards)
    part = PolicyBatch(rollout, zeros, zeros, zeros, zeros, chosen=None)
    fixed = LossCoefficients(0.0, 1.0, EntropyBand(0.9, 1.0, weight=2.0))
    algorithm = Algorithm()
    denominators = LossDenominators.of(rollout, algorithm.aggregation)
    objective, entropy = PolicyObjective(algorithm, fixed, denominators), torch.zeros(())
    for _ in range(300):
        logits = logits.detach().requires_grad_()
        _, entropy = log_prob_and_entropy(logits[None], torch.tensor([0]))
        output = PolicyOutput(zeros, entropy.expand_as(zeros), None)
        (slope,) = torch.autograd.grad(objective(output, part)[0], logits)
        logits = logits - 0.05 * slope
    assert float(entropy.detach()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("loss", [ClipCov(0.3, -9.0, 9.0), KLCov(0.3, 0.7)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_chosen_tokens_have_the_loss_of_chosen_tokens(
    loss: ClipCov | KLCov, aggregation: str
) -> None:
    rollout = collection(11)
    algorithm = Algorithm(policy_loss=loss, aggregation=aggregation)  # type: ignore[arg-type]
    new, old, advantages = draws(rollout, 11)
    zeros, at = torch.zeros_like(old), rollout.policy_weights > 0
    whole = TrainingBatch(rollout, old, zeros, advantages, zeros)
    chosen = loss.choose(whole)
    assert 0 < int(chosen.sum()) < int(rollout.loss_mask.sum()) / 2
    assert not bool(chosen[~at].any() | chosen[~rollout.loss_mask].any())
    plain = loss(new, old, advantages, rollout.loss_mask).loss
    move = new - old
    pull = torch.where(move.abs() < 1e-3, move.square() / 2e-3, move.abs() - 5e-4)
    apart = (-advantages * move.exp() + 0.7 * pull) * float(isinstance(loss, KLCov))
    expected = weighed(torch.where(chosen, apart, plain), rollout, aggregation, soft=True)
    objective = PolicyObjective(
        algorithm, LossCoefficients(0.0, 0.0), LossDenominators.of(rollout, algorithm.aggregation)
    )
    part = PolicyBatch.of(whole, chosen).rows(at)
    found = objective(PolicyOutput(new[at], zeros[at], None), part)[0]
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("estimator", get_args(KLEstimator))
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_gradient_of_the_objective_is_that_of_its_value(
    aggregation: str, estimator: KLEstimator
) -> None:
    """By finite differences in float64, with the clipped surrogate."""
    rollout = collection(12)
    rollout = rollout.rows(rollout.policy_weights > 0)
    algorithm = Algorithm(
        policy_loss=Clip(),
        aggregation=aggregation,  # type: ignore[arg-type]
        kl=KLPenalty(0.5, estimator),
        entropy=EntropyBonus(0.3),
    )
    new, old, advantages = draws(rollout, 12)
    reference, denominators = new.clone() - 0.5, LossDenominators.of(rollout, algorithm.aggregation)
    denominators = replace(denominators, for_loss=denominators.for_loss.double())
    zeros = torch.zeros_like(old)
    part = PolicyBatch(rollout, old, zeros, advantages, zeros, chosen=None)

    def objective(log_probs: Tensor, entropy: Tensor) -> Tensor:
        coefficients = LossCoefficients(kl=0.7, entropy=0.3)
        policy_objective = PolicyObjective(algorithm, coefficients, denominators)
        return policy_objective(PolicyOutput(log_probs, entropy, None), part, reference)[0]

    entropy = at_tokens(rollout, 14)
    assert torch.autograd.gradcheck(objective, (new.requires_grad_(), entropy.requires_grad_()))


def test_log_probs_and_entropy_are_the_distributions_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(4, 5, generator=generator, dtype=torch.float64)
    targets = torch.tensor([0, 4, 2, 2])
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    found = log_prob_and_entropy(logits.requires_grad_(), targets)
    chosen = p[torch.arange(4), targets]
    torch.testing.assert_close(found[0], chosen.log(), atol=1e-12, rtol=0)
    torch.testing.assert_close(found[1], -(p * p.log()).sum(1), atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(lambda x: log_prob_and_entropy(x, targets), (logits,))
    assert log_prob_and_entropy(logits.bfloat16(), targets)[1].dtype == torch.float32


def half_the_worse_square(numbers: list[float], clip: float | None) -> float:
    value, old, target = numbers
    errors = [value - target]
    if clip is not None:
        errors.append(min(max(value, old - clip), old + clip) - target)
    return max(error * error for error in errors) / 2


@pytest.mark.parametrize("clip", [None, 0.5])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5)
def test_the_critics_loss_is_the_mean_of_its_definition(clip: float | None, seed: int) -> None:
    """For any values off the mask and any policy weights."""
    rollout = collection(seed)
    mask = rollout.loss_mask
    values, old, returns = (at_tokens(rollout, seed + place) for place in range(3))
    tokens = mask.sum()
    noisy = values.masked_fill(~mask, 1e3)
    config = CriticConfig(value_clip=clip)
    part = TrainingBatch(rollout, torch.zeros_like(old), old, torch.zeros_like(old), returns)
    found = ValueObjective(part, config)(noisy, part)
    numbers = torch.stack([values, old, returns], -1)[mask].tolist()
    expected = sum(half_the_worse_square(three, clip) for three in numbers) / int(tokens)
    assert float(found) == pytest.approx(expected)
