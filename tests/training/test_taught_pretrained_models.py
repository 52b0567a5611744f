"""A model of a Hugging Face folder, with its own tokenizer, is taught by every teacher: whole or by
adapters, and in a run that goes on from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from callbacks import RolloutMetrics, VarianceFilter
from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.models import PretrainedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.self_distillation import SelfDistillation
from ragen_pl.rollout.teachers import (
    Explorer,
    Offline,
    RecordedWorldModel,
    Solver,
    Teacher,
    WorldModel,
)
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from tests.support.doubles import make_trainer
from tests.support.extras import need
from tests.support.recorded_play import record_expert
from tests.support.templates import save_model
from tests.support.toy_env import PROMPTS, Stairs

ROLLOUT = RolloutConfig(
    num_groups=1,
    group_size=4,
    max_turns=2,
    max_actions_per_turn=1,
    max_response_tokens=48,
    max_context=320,
)
TEACHERS = ("SelfDistillation", "WorldModel", "Offline", "RecordedWorldModel", "Explorer")
WARM = 2
"""Iterations of imitation, which one of RL follows."""


class Seen(Stairs):
    """Stairs that a small agent sees as an array."""

    def features(self) -> Any:
        return np.array([self.lit, self.is_over, self.step_number / 2], dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    record_expert(folder / "play.jsonl", Seen(), ROLLOUT, PROMPTS)
    return save_model(folder)


def teacher_of(name: str, folder: Path) -> Teacher:
    """Make a teacher of few lessons: the expert, if it is to be the policy itself."""
    files = (str(folder / "play.jsonl"),)
    match name:
        case "WorldModel":
            return WorldModel(held_out=2)
        case "Offline":
            return Offline(files)
        case "RecordedWorldModel":
            return RecordedWorldModel(files, held_out=2)
        case "Explorer":
            need("stable_baselines3", "explorer")
            return Explorer(steps=200, starts=4, layers=(16,))
    return Solver()


def fit(
    folder: Path, run: Path, name: str, lora: LoRA | None, ckpt: Path | None = None
) -> tuple[StarPO, list[dict[str, float]]]:
    """Train to the end, and return the metrics of each iteration."""
    metrics = list[dict[str, float]]()

    class Keep(ModelCheckpoint):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_train_epoch_end(trainer, pl_module)
            metrics.append({k: float(v) for k, v in trainer.callback_metrics.items()})

    distills = name == "SelfDistillation"
    data = RolloutDataModule(
        env=Seen(),
        eval_sets={"default": Seen()},
        prompts=PROMPTS,
        rollout=ROLLOUT,
        warm_start=WarmStart(
            iterations=WARM,
            updates_per_iteration=2,
            batch_size=3,
            demonstrations=4,
            teacher=teacher_of(name, folder),
        ),
        # Hints of the expert need no success, which so few steps do not teach.
        distillation=SelfDistillation(source="expert", lessons=3) if distills else None,
        evaluation=EvaluationConfig(size=2),
    )
    module = StarPO(
        policy=PretrainedModel(str(folder)),
        algorithm=Algorithm(
            advantage=GAE(critic=CriticConfig(warmup_iterations=0)), kl=KLPenalty()
        ),
        optimization=Optimization(lr=1e-2, imitation_lr=1e-2, warmup_iterations=0),
        lora=lora,
    )
    module.vocabulary = []
    keep = Keep(run, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    callbacks = [RolloutMetrics(), VarianceFilter(keep_fraction=1.0), keep]
    trainer = make_trainer(run, WARM + 1, callbacks, limit_val_batches=0, enable_checkpointing=True)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt)
    return module, metrics


def lessons_aside(metrics: list[dict[str, float]]) -> list[dict[str, float]]:
    """Leave out what a teacher tells once in a command, if it has to make its lessons again."""
    return [{k: v for k, v in each.items() if not k.startswith("teacher/")} for each in metrics]


@pytest.mark.parametrize(
    ("lora", "done"), [(None, 1), (LoRA(rank=4, alpha=8), 2)], ids=["whole", "adapters"]
)
@pytest.mark.parametrize("name", TEACHERS)
def test_a_taught_pretrained_model_goes_on_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, lora: LoRA | None, done: int
) -> None:
    """Whole from within the warm start, by adapters from its end."""
    whole, metrics = fit(folder, tmp_path / "whole", name, lora)
    path = tmp_path / f"whole/epoch={done - 1}.ckpt"
    resumed, later = fit(folder, tmp_path / "resumed", name, lora, path)
    assert lessons_aside(later) == lessons_aside(metrics[done:])
    ends = resumed.state_dict()
    for key, value in whole.state_dict().items():
        assert torch.equal(value, ends[key]), key
    saved = torch.load(path, weights_only=True)["state_dict"]
    moved = {key for key in saved if not torch.equal(saved[key], ends[key])}
    assert any(key.startswith("policy.model") for key in moved)
    *warm, rl = metrics
    assert warm[0]["teacher/demonstrations"] >= 2
    asks = name.endswith("WorldModel")
    assert all(("train/right_answers" in each) == asks for each in warm)
    assert (rl.get("train/distill_share", 0) > 0) == (name == "SelfDistillation")
