"""The batch of a skipped step is there to be looked at, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from callbacks import SkippedSteps
from callbacks.skipped_steps import FOLDER
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.datamodule import RolloutDataModule
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


class Poison(Callback):
    """Make the losses of one iteration no numbers, from one of its updates on."""

    def __init__(self, iteration: int, first: int = 0) -> None:
        self.iteration, self.first = iteration, first

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if module.iteration == self.iteration and batch_idx >= self.first:
            batch.advantages.fill_(float("nan"))


@pytest.mark.parametrize("poisoned", [None, 1])
def test_a_skipped_step_leaves_its_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], poisoned: int | None
) -> None:
    module = make_learner()
    rollout = RolloutConfig(
        num_groups=2, group_size=4, max_turns=2, max_actions_per_turn=1, max_response_tokens=6
    )
    data = RolloutDataModule(NamedLamp(), {"lamp": NamedLamp()}, prompts=PROMPTS, rollout=rollout)
    callbacks = [SkippedSteps(), *([] if poisoned is None else [Poison(poisoned)])]
    trainer = make_trainer(tmp_path, 3, callbacks, limit_val_batches=0)
    trainer.fit(module, data)
    path = tmp_path / FOLDER / "rank0.pt"
    assert path.exists() == (poisoned is not None)
    assert module.skipped_steps == (poisoned is not None)
    if poisoned is not None:
        saved = torch.load(path, weights_only=True)
        assert saved["iteration"] == poisoned
        assert bool(saved["batch"]["advantages"].isnan().all())
        assert saved["batch"]["rollout"]["input_ids"].shape[0] == 8
        assert "skipped the optimizer step of iteration 2" in capsys.readouterr().out


def test_the_metric_counts_the_skipped_steps_of_the_run(tmp_path: Path) -> None:
    """Not their mean over the updates of an iteration."""
    module = make_learner()
    rollout = RolloutConfig(
        num_groups=2,
        group_size=4,
        ppo_epochs=4,
        max_turns=2,
        max_actions_per_turn=1,
        max_response_tokens=6,
    )
    data = RolloutDataModule(NamedLamp(), {"lamp": NamedLamp()}, prompts=PROMPTS, rollout=rollout)
    trainer = make_trainer(tmp_path, 2, [Poison(1, first=2)], limit_val_batches=0)
    trainer.fit(module, data)
    assert module.skipped_steps == trainer.callback_metrics["train/skipped_steps"] == 2
