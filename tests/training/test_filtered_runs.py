"""Real iterations under every filter rule: optimizer steps are taken and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from callbacks import RolloutMetrics, VarianceFilter
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.filters import (
    FilterRule,
    MinP,
    PercentileBand,
    SoftmaxTopP,
    SoftWeights,
    TopFraction,
    TopK,
    TopP,
)
from ragen_pl.envs.bandit import Bandit
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from tests.support.doubles import make_trainer


def train(
    chosen: VarianceFilter, dynamic: DynamicSampling | None = None, **rollout: Any
) -> tuple[StarPO, dict[str, float]]:
    """Run one RL iteration on the bandit, whose untrained groups have equal returns."""
    sizes = {"num_groups": 1, "online_k": 4, "group_size": 4, "max_response_tokens": 6}
    data = RolloutDataModule(
        env=Bandit(),
        eval_sets={"default": Bandit(split="eval")},
        rollout=RolloutConfig(
            max_turns=1, max_actions_per_turn=1, max_context=256, **{**sizes, **rollout}
        ),
        warm_start=WarmStart(iterations=0),
        evaluation=EvaluationConfig(size=2),
        dynamic_sampling=dynamic,
    )
    module = StarPO(
        policy=EmbeddedModel(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2),
        algorithm=Algorithm(advantage=GAE(critic=CriticConfig(warmup_iterations=0))),
        vocabulary=list(data.vocabulary()),
    )
    trainer = make_trainer(Path(), 1, [chosen, RolloutMetrics()], limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    return module, {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (TopFraction(0.5), 0.5),
        (TopK(1), 0.25),
        (TopP(0.75), 0.75),
        (SoftmaxTopP(0.5), 0.5),
        (MinP(), 1.0),
        (PercentileBand(0.5, 0.75), 0.25),
        (SoftWeights(), 1.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_rule_trains(rule: FilterRule, kept: float) -> None:
    module, metrics = train(VarianceFilter(None, include_zero=True, rule=rule))
    assert metrics["rollout/kept_fraction"] == kept
    assert module.global_step == 4
    assert module.skipped_steps == 0


@pytest.mark.parametrize(
    ("scale_updates", "keep_fraction", "steps"),
    [
        (False, 0.25, 4),
        (False, 1.0, 4),
        (True, 0.25, 1),
        (True, 0.5, 2),
        (True, 1.0, 4),
    ],
)
def test_the_number_of_steps(scale_updates: bool, keep_fraction: float, steps: int) -> None:
    chosen = VarianceFilter(keep_fraction, include_zero=True)
    assert train(chosen, scale_updates=scale_updates)[0].global_step == steps


def test_further_collections_are_counted_and_do_not_train_the_policy_without_signal() -> None:
    _, once = train(VarianceFilter(1.0))
    module, twice = train(VarianceFilter(1.0), DynamicSampling(max_collections=2))
    assert (once["rollout/collections"], twice["rollout/collections"]) == (1, 2)
    assert twice["rollout/sampled_tokens"] > once["rollout/sampled_tokens"]
    assert "train/policy_loss" not in twice  # there was no update
    assert twice["train/updates"] == 0
    assert "train/grad_norm_policy" not in twice  # there was no gradient
    assert once["train/grad_norm_policy"] > 0
    assert twice["train/grad_norm_critic"] > 0
    assert module.global_step == 4
    assert all(torch.isfinite(p).all() for p in module.parameters())
