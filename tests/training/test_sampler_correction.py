"""Truncated importance sampling for an engine that does not sample from the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from ragen_pl.algorithms.coefficients import LossCoefficients
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.algorithms.policy_losses import LogLikelihood, PolicyLoss
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.policy import PolicyOutput
from ragen_pl.rollout.engines import InProcess
from ragen_pl.rollout.engines.base import Autocast
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.training.update import LossDenominators, PolicyObjective
from ragen_pl.types import Completion, PolicyBatch, Request, Sampling
from tests.support.algorithms import LOSSES
from tests.support.config_key_effects import differ
from tests.training.test_keys_act import OPTIMIZATION, but, outcome
from tests.training.test_objective import batch


class Hotter(InProcessSampler):
    """A sampler at a higher temperature, with the matching log-probs: another policy."""

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return super().__call__(requests, replace(sampling, temperature=2 * sampling.temperature))


@dataclass(frozen=True)
class Biased(InProcess):
    """Its engine."""

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> Hotter:
        end = language.markers.end
        return Hotter(language.model, stop_id=end, seed=seed, max_context=max_context)


def trained(cap: float | None, engine: InProcess) -> dict[str, Any]:
    """Train for two iterations; return the weights and the last metrics."""
    return outcome(but(advantage=GRPO(), tis_cap=cap), OPTIMIZATION, engine)


def weights(run: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name.startswith("weights/")}


def test_the_cap_acts_where_the_sampler_differs_from_the_policy() -> None:
    free, loose, tight = (trained(cap, Biased()) for cap in (None, 1.5, 1.0))
    assert float(free["train/sampler_ratio_max"]) > 1.5
    assert float(free["train/log_prob_gap"]) > 1e-2
    assert float(free["train/sampler_ess"]) < 0.99
    assert "train/tis_clip_fraction" not in free
    assert 0 < float(tight["train/tis_clip_fraction"]) < 1
    assert differ(weights(free), weights(loose))
    assert differ(weights(loose), weights(tight))


def test_it_changes_nothing_where_the_sampler_is_the_policy() -> None:
    free, capped = trained(None, InProcess()), trained(2.0, InProcess())
    assert float(free["train/sampler_ratio_max"]) == pytest.approx(1, abs=1e-3)
    assert float(free["train/sampler_ess"]) == pytest.approx(1, abs=1e-5)
    assert float(capped["train/tis_clip_fraction"]) == 0
    for name, value in weights(free).items():
        torch.testing.assert_close(capped[name], value, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", LOSSES)
def test_every_tokens_loss_is_weighted_by_its_truncated_ratio(name: str) -> None:
    """One token at a time the loss is the plain one times min(π/μ, cap)."""
    old = torch.tensor([[0.0, -0.5, -1.0, -2.0]], dtype=torch.float64)
    sampled = torch.tensor([[0.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    weights = torch.tensor([1.0, min(1.4, 2.718281828459045**0.5), 1.0, 2.718281828459045**-1])
    for place in range(1, 4):
        plain, corrected = (losses(LOSSES[name], cap, old, sampled, place) for cap in (None, 1.4))
        assert corrected == pytest.approx(float(weights[place]) * plain, rel=1e-6)
        assert plain != 0


def losses(
    loss: PolicyLoss, cap: float | None, old: torch.Tensor, sampled: torch.Tensor, place: int
) -> float:
    """Return the policy loss of a row with one sampled token."""
    mask = (torch.arange(4) == place)[None]
    part = replace(
        batch(0, rows=1, length=4),
        attention_mask=torch.ones_like(mask),
        loss_mask=mask,
        turn_ends=mask,
        sampled_log_probs=sampled * mask,
        policy_weights=torch.ones(1),
    )
    algorithm = Algorithm(policy_loss=loss, tis_cap=cap)
    old = old * mask
    scores = PolicyOutput(old - 0.1 * mask, torch.zeros_like(old), None)
    zeros = torch.zeros_like(old)
    row = PolicyBatch(part, old, zeros, 0.7 * torch.ones_like(old), zeros, chosen=None)
    denominators = LossDenominators.of(part, algorithm.aggregation)
    objective = PolicyObjective(algorithm, LossCoefficients(0.0, 0.0), denominators)
    return float(objective(scores, row)[0])


def test_a_cap_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tis_cap is 0.5; it must be at least 1"):
        Algorithm(tis_cap=0.5)


def test_ratios_to_the_samplers_own_log_probs_are_refused() -> None:
    algorithm = Algorithm(policy_loss=LogLikelihood(), tis_cap=2.0)
    algorithm.check(Optimization())
    with pytest.raises(ValueError, match="set it to recomputed, or the cap to null"):
        algorithm.check(Optimization(old_log_probs="sampled"))
