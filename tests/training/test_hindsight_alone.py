"""Hindsight imitation alone: rollouts find solutions, and nothing but these is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from callbacks import RolloutMetrics, VarianceFilter
from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, GRPO
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Demonstration, HindsightBatch, TrainingBatch
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, Stairs, make_learner

ROLLOUT = RolloutConfig(
    num_groups=4,
    group_size=4,
    online_k=2,
    max_turns=3,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
)
DEMONSTRATIONS = WarmStart(
    demonstrations=16, batch_size=8, updates_per_iteration=40, random_turns=0.0
)


class Seen(Callback):
    """The kinds of batches that were trained on, in order."""

    def __init__(self) -> None:
        self.kinds: list[type] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.kinds.append(type(batch))


def train(
    imitated: int, hindsight: HindsightImitation, lr: float | None = None
) -> tuple[StarPO, Seen, Trainer]:
    """Train for two iterations after those of a warm start.

    Args:
        lr: Learning rate of RL; None for the learner's own.
    """
    data = RolloutDataModule(
        env=Stairs(),
        eval_sets={"default": Stairs()},
        prompts=PROMPTS,
        rollout=ROLLOUT,
        warm_start=replace(DEMONSTRATIONS, iterations=imitated),
        hindsight=hindsight,
        evaluation=EvaluationConfig(size=4),
    )
    module, seen = make_learner(hindsight_lr=hindsight.lr), Seen()
    if lr is not None:
        module.optimization = replace(module.optimization, lr=lr)
    callbacks = [RolloutMetrics(), VarianceFilter(keep_fraction=1.0), seen]
    trainer = make_trainer(Path(), imitated + 2, callbacks, limit_val_batches=0)
    trainer.fit(module, datamodule=data)
    return module, seen, trainer


def test_alone_there_are_no_steps_of_rl() -> None:
    both = train(1, HindsightImitation(updates=3, batch_size=6))[1].kinds
    _, seen, trainer = train(1, HindsightImitation(updates=3, batch_size=6, alone=True))
    demonstrated, rl, imitation = [Demonstration] * 40, [TrainingBatch] * 2, [HindsightBatch] * 3
    assert both == [*demonstrated, *rl, *imitation, *rl, *imitation]
    assert seen.kinds == [*demonstrated, *imitation, *imitation]
    assert float(trainer.callback_metrics["train/hindsight_share"]) == 1.0
    assert "train/policy_loss" not in trainer.callback_metrics


def test_where_nothing_is_solved_the_run_goes_on_and_learns_nothing() -> None:
    module, seen, trainer = train(0, HindsightImitation(alone=True))
    assert (trainer.current_epoch, module.iteration, seen.kinds) == (2, 2, [])
    assert float(trainer.callback_metrics["rollout/success"]) == 0.0
    untouched = make_learner()
    untouched.configure_model()
    for own, other in zip(module.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(own, other)


def test_rl_leaves_no_trace_in_the_steps_of_imitation() -> None:
    """Its gradient must not be spent at their learning rate, by a momentum that they share."""
    hindsight = HindsightImitation(updates=3, batch_size=6, lr=1e-3)
    beside, _, trainer = train(1, hindsight, lr=1e-30)
    alone, *_ = train(1, replace(hindsight, alone=True))
    assert float(trainer.callback_metrics["train/grad_norm_policy"]) > 1e-3
    for one, other in zip(beside.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (Algorithm(advantage=GAE()), "its critic would never be trained"),
        (Algorithm(advantage=GRPO(), kl=KLPenalty()), r"algorithm\.kl is set"),
    ],
)
def test_networks_that_nothing_would_use_are_refused(algorithm: Algorithm, told: str) -> None:
    learner = StarPO(algorithm=algorithm, hindsight_lr=1e-3)
    data = RolloutDataModule(
        Stairs(), {"default": Stairs()}, rollout=ROLLOUT, hindsight=HindsightImitation(alone=True)
    )
    with pytest.raises(ValueError, match=told):
        data.check_learner(learner)


def test_a_learner_without_a_rate_for_it_is_refused_before_the_run() -> None:
    data = RolloutDataModule(
        Stairs(), {"default": Stairs()}, rollout=ROLLOUT, hindsight=HindsightImitation()
    )
    with pytest.raises(ValueError, match="StarPO has no hindsight_lr"):
        data.check_learner(StarPO(algorithm=Algorithm(advantage=GRPO())))
