"""The planned bytes of a batch are those of one that a run collected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from ragen_pl.cli.plan.memory import BATCH_BYTES_PER_TOKEN
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.types import TensorBatch, TrainingBatch
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner


class Keep(RolloutCallback):
    """Keep the batch."""

    batch: TrainingBatch

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        self.batch = batch


def tensors(batch: TensorBatch) -> Iterator[Tensor]:
    for field in fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, TensorBatch):
            yield from tensors(value)
        elif isinstance(value, Tensor):
            yield value


def test_a_token_of_a_collected_batch_takes_the_planned_bytes(tmp_path: Path) -> None:
    data = RolloutDataModule(
        env=NamedLamp(),
        eval_sets={"default": NamedLamp()},
        prompts=PROMPTS,
        rollout=RolloutConfig(
            num_groups=1, group_size=2, max_turns=2, max_response_tokens=8, max_context=256
        ),
        evaluation=EvaluationConfig(size=2),
    )
    keep = Keep()
    make_trainer(tmp_path, 1, [keep]).fit(make_learner(), datamodule=data)
    of_tokens = [each for each in tensors(keep.batch) if each.ndim == 2]
    shape = keep.batch.rollout.input_ids.shape
    assert all(each.shape == shape for each in of_tokens)
    assert sum(each.nbytes for each in of_tokens) == BATCH_BYTES_PER_TOKEN * shape.numel()
