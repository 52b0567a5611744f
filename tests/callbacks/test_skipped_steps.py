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
from ragen_pl.training.starpo import StarPO
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


class Poison(Callback):
    """Make the losses of one iteration no numbers, from one of its updates on."""

    def __init__(self, iteration: int, first: int = 0) -> None:
        self.iteration, self.first = iteration, first

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if module.iteration == self.iteration and batch_idx >= self.first:
            batch.advantages.fill_(float("nan"))


def fit(run_dir: Path, callbacks: list[Callback]) -> StarPO:
    module = make_learner()
    rollout = RolloutConfig(
        num_groups=2, group_size=4, max_turns=2, max_actions_per_turn=1, max_response_tokens=6
    )
    data = RolloutDataModule(NamedLamp(), {"lamp": NamedLamp()}, prompts=PROMPTS, rollout=rollout)
    make_trainer(run_dir, 3, callbacks, limit_val_batches=0).fit(module, data)
    return module


@pytest.mark.parametrize("poisoned", [None, 1])
def test_a_skipped_step_leaves_its_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], poisoned: int | None
) -> None:
    module = fit(tmp_path, [SkippedSteps(), *([] if poisoned is None else [Poison(poisoned)])])
    path = tmp_path / FOLDER / "rank0.pt"
    assert path.exists() == (poisoned is not None)
    assert module.skipped_steps == (poisoned is not None)
    if poisoned is not None:
        saved = torch.load(path, weights_only=True)
        assert saved["iteration"] == poisoned
        assert bool(saved["batch"]["advantages"].isnan().all())
        assert saved["batch"]["rollout"]["input_ids"].shape[0] == 8
        assert "skipped the optimizer step of iteration 2" in capsys.readouterr().out


def test_a_disk_that_fails_leaves_the_batch_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(content: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    path = tmp_path / FOLDER / "rank0.pt"
    path.parent.mkdir()
    path.write_bytes(b"that of an earlier step")
    monkeypatch.setattr(torch, "save", save)
    fit(tmp_path, [SkippedSteps(), Poison(1)])
    assert path.read_bytes() == b"that of an earlier step"
    assert list(path.parent.iterdir()) == [path]
    assert "the batch could not be saved" in capsys.readouterr().out


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
