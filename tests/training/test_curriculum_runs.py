"""A curriculum in a run: its seeds, its memory, and what a run without one is spared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum import Curriculum, TargetSuccess
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.hindsight import HindsightImitation
from ragen_pl.rollout.tallies import sum_tallies, tally_by_difficulty
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.dynamic_sampling import DynamicSampling
from ragen_pl.training.evaluation.sets import EvaluationConfig
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner
from tests.support.watch import Watch

ROLLOUT = RolloutConfig(
    num_groups=4,
    group_size=3,
    max_turns=2,
    max_actions_per_turn=1,
    max_response_tokens=10,
    max_context=128,
)
WARM_START = WarmStart(iterations=1, demonstrations=16, batch_size=8, updates_per_iteration=20)


def make_data(
    curriculum: Curriculum | None = None, env: TextEnv | None = None, **changes: Any
) -> RolloutDataModule:
    chosen = {} if curriculum is None else {"curriculum": curriculum}
    return RolloutDataModule(
        env=env or NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        evaluation=EvaluationConfig(size=4),
        **{"rollout": ROLLOUT, "warm_start": WARM_START, "run_seed": 3, **chosen, **changes},
    )


class HardLamp(NamedLamp):
    """A lamp in which only the press of one button succeeds."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, ends, cut, _ = super().step(action)
        return text, reward, ends, cut, {"success": ends and action == "on"}


CHOOSING = TargetSuccess(pool_factor=3, decay=0.5)
HINDSIGHT = HindsightImitation(updates=2, batch_size=4)


def fit(folder: Path, *, dies_at: int | None = None, resume: bool = False) -> tuple[Any, Watch]:
    module, watch = make_learner(hindsight_lr=HINDSIGHT.lr), Watch(dies_at)
    saver = ModelCheckpoint(folder, save_last=True)
    data = make_data(
        CHOOSING,
        HardLamp(),
        dynamic_sampling=DynamicSampling(max_collections=2),
        hindsight=HINDSIGHT,
        warm_start=replace(WARM_START, updates_per_iteration=40),  # so that it succeeds at times
    )
    trainer = make_trainer(
        folder, 5, [watch, saver], enable_checkpointing=True, limit_val_batches=0
    )
    ckpt_path = folder / "last.ckpt" if resume else None
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
    return module, watch


def memory(folder: Path) -> dict[str, Any]:
    """Load the memory of solutions from a run's last checkpoint."""
    saved = torch.load(folder / "last.ckpt", weights_only=True)
    return dict(saved["RolloutDataModule"]["memory"])


def test_a_run_learns_from_every_collection_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """With a curriculum and a memory of solutions, whose imitation changes what the curriculum
    sees."""
    whole, watched = fit(tmp_path / "whole")
    with pytest.raises(SystemExit):
        fit(tmp_path / "parts", dies_at=3)
    resumed, went_on = fit(tmp_path / "parts", resume=True)

    progress: Any = {}
    for iteration, groups in watched.played.items():
        progress = CHOOSING.learn(progress, sum_tallies([tally_by_difficulty(groups)]))
        assert watched.running[iteration] == {name: t.success for name, t in progress.items()}
    assert max(len(groups) for groups in watched.played.values()) == 8, "a second collection"
    weights = {group.weight for groups in watched.played.values() for group in groups}
    assert weights > {1.0}, "other weights, after a first choice that knows nothing"

    for iteration in (3, 4):
        assert went_on.running[iteration] == watched.running[iteration]
        one, other = went_on.played[iteration], watched.played[iteration]
        assert [(g.seed, g.group_id, g.weight) for g in one] == [
            (g.seed, g.group_id, g.weight) for g in other
        ]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name

    kept, restored = (memory(tmp_path / name) for name in ("whole", "parts"))
    assert {iteration for iteration, *_ in kept["solutions"]} & {1, 2}, "found before the stop"
    assert kept.keys() == restored.keys()
    for name, value in kept.items():
        is_tensor = isinstance(value, torch.Tensor)
        assert torch.equal(value, restored[name]) if is_tensor else value == restored[name], name
    assert "train/hindsight_loss" in watched.logged
    assert watched.logged["train/hindsight_loss"] == went_on.logged["train/hindsight_loss"]
