"""What a rehearsal finds before a run, and what it leaves alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm, EnvAlgorithm
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.estimators.base import WithoutCritic
from ragen_pl.algorithms.policy_losses import Clip, PolicyLoss, TokenLoss
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training import StarPO
from ragen_pl.training.rehearsal import rehearse
from ragen_pl.types import RolloutBatch, TrainingBatch
from tests.support.algorithms import ESTIMATORS, LOSSES


@dataclass(frozen=True)
class PerRow(WithoutCritic):
    """An estimator that forgets the tokens."""

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        return rewards.sum(1)


@dataclass(frozen=True)
class Detached(PolicyLoss):
    """A loss that nothing can be learned from."""

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        return TokenLoss(-advantages * log_probs.detach(), mask)


@dataclass(frozen=True)
class Chooser(Clip):
    """A loss that names the tokens it chooses by their places."""

    def choose(self, batch: TrainingBatch) -> Any:
        return torch.nonzero(batch.rollout.loss_mask)


@dataclass(frozen=True)
class Noisy(WithoutCritic):
    """An estimator that draws, and remembers that it was asked."""

    asked: list[int] = field(default_factory=list)

    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        self.asked.append(1)
        return torch.rand(()) * rollout.loss_mask


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (Algorithm(advantage=PerRow()), r"PerRow.compare returned a float\d+ tensor of shape"),
        (Algorithm(policy_loss=Detached()), "Detached.__call__ returned a loss without a gradient"),
        (Algorithm(policy_loss=Chooser()), "Chooser.choose returned an int64 tensor"),
    ],
)
def test_a_part_of_ones_own_is_refused_before_anything_is_built(
    algorithm: Algorithm, told: str
) -> None:
    """Once it was after the warm start, which may take an hour."""
    with pytest.raises(ConfigError, match=told):
        StarPO(algorithm=algorithm).check_rollouts((), Prompts(), RolloutConfig())


def test_the_estimator_of_one_environment_is_tried_too() -> None:
    algorithm = Algorithm(advantage=GRPO(), per_env={"b": EnvAlgorithm(advantage=PerRow())})
    rehearse(algorithm, 2, ("a", "c"))
    with pytest.raises(ConfigError, match=r"PerRow.compare"):
        rehearse(algorithm, 2, ("a", "b"))


def test_the_loss_of_one_environment_is_tried_too() -> None:
    """A loss that no environment has is not."""
    for own, told in ((Detached(), r"Detached\.__call__"), (Chooser(), r"Chooser\.choose")):
        algorithm = Algorithm(per_env={"b": EnvAlgorithm(policy_loss=own)})
        rehearse(algorithm, 2, ("a", "c"))
        with pytest.raises(ConfigError, match=told):
            rehearse(algorithm, 2, ("a", "b"))
    every = {name: EnvAlgorithm(policy_loss=Clip()) for name in ("a", "b")}
    rehearse(Algorithm(policy_loss=Detached(), per_env=every), 2, ("a", "b"))


@pytest.mark.parametrize("policy_loss", LOSSES)
def test_every_shipped_loss_passes_in_one_environment(policy_loss: str) -> None:
    own = {"b": EnvAlgorithm(policy_loss=LOSSES[policy_loss])}
    rehearse(Algorithm(per_env=own), 3, ("a", "b"))


def test_what_is_rehearsed_stays_as_it_was() -> None:
    state, estimator = torch.get_rng_state(), Noisy()
    rehearse(Algorithm(advantage=estimator), 2, ())
    assert torch.equal(torch.get_rng_state(), state)
    assert estimator.asked == []


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("group_size", [2, 5])
def test_every_shipped_estimator_passes(estimator: str, group_size: int) -> None:
    rehearse(Algorithm(advantage=ESTIMATORS[estimator].estimator), group_size, ())


@pytest.mark.parametrize("policy_loss", LOSSES)
def test_every_shipped_loss_passes(policy_loss: str) -> None:
    rehearse(Algorithm(policy_loss=LOSSES[policy_loss]), 3, ("a", "b"))
