"""Learn: the smallest task that goes wrong when a sign is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from callbacks import VarianceFilter
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, EntropySmoothing
from ragen_pl.algorithms.estimators import GAE, GRPO, AdvantageEstimator, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.algorithms.policy_losses import SAPO, ClipCov, KLCov
from ragen_pl.envs.bandit import Bandit
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.training import starpo
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.results import summarize
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import HindsightBatch, RolloutBatch
from tests.support.doubles import make_trainer


def learn_bandit(
    algorithm: Algorithm,
    iterations: int = 34,
    hindsight: HindsightImitation | None = None,
    lr: float = 5e-4,
) -> float:
    """Train on the bandit; return how often the high arm is chosen at temperature 1."""
    data = RolloutDataModule(
        env=Bandit(),
        eval_sets={"default": Bandit(split="eval")},
        rollout=RolloutConfig(max_turns=1, max_actions_per_turn=1, max_context=256),
        warm_start=WarmStart(
            iterations=4, demonstrations=64, updates_per_iteration=25, random_turns=0.0
        ),
        hindsight=hindsight,
        evaluation=EvaluationConfig(size=128, temperature=1.0),
    )
    module = StarPO(
        policy=EmbeddedModel(hidden_size=64, intermediate_size=128, num_heads=4),
        algorithm=algorithm,
        optimization=Optimization(lr=lr, imitation_lr=3e-3, final_lr_fraction=1.0),
        vocabulary=list(dict.fromkeys(data.vocabulary())),
        hindsight_lr=None if hindsight is None else hindsight.lr,
    )
    trainer = make_trainer(
        Path(), iterations, [VarianceFilter(keep_fraction=1.0)], limit_val_batches=0
    )
    trainer.fit(module, datamodule=data)
    return summarize(data.evaluator.evaluate(trainer, "default", 1.0)).success


@pytest.mark.parametrize("advantage", [GAE(critic=CriticConfig(warmup_iterations=2)), GRPO()])
def test_the_bandit_is_learned(advantage: AdvantageEstimator) -> None:
    assert learn_bandit(Algorithm(advantage=advantage)) >= 0.8


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(GRPO(), SAPO()),
        Algorithm(GRPO(), ClipCov(share=0.02, cov_low=0.1)),
        Algorithm(GRPO(), KLCov(share=0.02)),
        Algorithm(GRPO(), entropy=EntropyBonus(smoothing=EntropySmoothing())),
    ],
    ids=["SAPO", "ClipCov", "KLCov", "EPO"],
)
def test_the_bandit_is_learned_by_every_recipe(algorithm: Algorithm) -> None:
    assert learn_bandit(algorithm) >= 0.8


def test_a_flipped_advantage_unlearns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would not survive: it notices a wrong sign."""

    def flipped(
        rollout: RolloutBatch, values: Tensor, algorithm: Algorithm, penalty: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        advantage, returns = compute_advantages(rollout, values, algorithm, penalty)
        return -advantage, returns

    monkeypatch.setattr(starpo, "compute_advantages", flipped)
    assert learn_bandit(Algorithm(GRPO())) <= 0.3


HINDSIGHT = HindsightImitation(updates=2, batch_size=16)
STILL = 1e-9
"""Learning rate at which RL itself teaches nothing."""


def test_the_bandit_is_learned_from_its_own_solutions() -> None:
    assert learn_bandit(Algorithm(GRPO()), 20, HINDSIGHT, lr=STILL) >= 0.8


def test_imitation_with_a_flipped_sign_unlearns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = StarPO._hindsight_step

    def flipped(module: StarPO, batch: HindsightBatch) -> None:
        backward = module._backward
        monkeypatch.setattr(module, "_backward", lambda loss: backward(-loss))
        own(module, batch)
        monkeypatch.setattr(module, "_backward", backward)

    monkeypatch.setattr(StarPO, "_hindsight_step", flipped)
    assert learn_bandit(Algorithm(GRPO()), 20, HINDSIGHT, lr=STILL) <= 0.3
