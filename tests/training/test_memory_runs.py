"""Runs in which the memory cuts the context: ratios, records, several ranks' worth of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

from callbacks import RolloutMetrics, TrajectoryWriter
from ragen_pl.report.recorded_trajectories import index_file, read_trajectories
from ragen_pl.report.trajectory_files import read_records
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.memory import Compact, Full, Memory, State, Window
from ragen_pl.training.callback import RolloutCallback
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.evaluation.sets import EvaluationConfig
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import TrainingBatch
from tests.report.test_trajectory_record import VALIDATOR
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, Stairs, make_learner

COMPACT = Compact(budget=110, request="Sum up.")


class Watch(RolloutCallback):
    """Keep the batches that were trained on, and the trainer's log-probs at the weights that
    sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[TrainingBatch] = []
        self.gaps: list[float] = []

    def on_training_batch(
        self, trainer: Trainer, module: LightningModule, batch: TrainingBatch
    ) -> None:
        assert isinstance(module, StarPO)
        every = torch.ones(len(batch), dtype=torch.bool)
        with torch.no_grad():
            own = module.passes.log_probs(module.policy, batch.rollout, every)
        gaps = (own - batch.rollout.sampled_log_probs).abs()[batch.rollout.loss_mask]
        self.gaps.append(float(gaps.max()))
        self.batches.append(batch)


def fit(memory: Memory, folder: Path) -> tuple[Watch, Trainer]:
    rollout = RolloutConfig(
        num_groups=3,
        group_size=4,
        online_k=2,
        max_turns=8,
        max_actions_per_turn=1,
        max_response_tokens=10,
        max_context=400,
        memory=memory,
    )
    data = RolloutDataModule(
        Stairs(),
        {"default": Stairs()},
        prompts=PROMPTS,
        rollout=rollout,
        warm_start=WarmStart(1, updates_per_iteration=20, demonstrations=16, batch_size=8),
        evaluation=EvaluationConfig(size=2),
    )
    module, watch = make_learner(), Watch()
    module.vocabulary += list(memory.vocabulary())
    callbacks = (TrajectoryWriter(1, groups=None), RolloutMetrics(), watch)
    trainer = make_trainer(folder, 3, callbacks)
    trainer.fit(module, datamodule=data)
    return watch, trainer


@pytest.mark.parametrize("memory", [Full(), Window(2), State(), COMPACT], ids=repr)
def test_sampled_log_probs_are_the_trainers_in_every_sequence(
    memory: Memory, tmp_path: Path
) -> None:
    """The cache of a cut row begins anew where the context differs, so the ratio is 1 at first."""
    watch, trainer = fit(memory, tmp_path)
    assert len(watch.batches) == 2
    assert max(watch.gaps) < 1e-5
    assert float(trainer.callback_metrics["train/skipped_steps"]) == 0
    assert float(trainer.callback_metrics["train/log_prob_gap"]) < 1e-5
    for batch in watch.batches:
        rollout = batch.rollout
        assert bool(rollout.sequence_index.any()) == memory.cuts
        assert torch.unique(rollout.trajectory_ids).numel() == 3 * 4 * 2
        assert not batch.advantages[~rollout.loss_mask].any()
    sequences = float(trainer.callback_metrics["rollout/sequences_per_trajectory"])
    assert (sequences > 1) == memory.cuts
    _check_records(tmp_path, watch.batches[-1])


def _check_records(folder: Path, batch: TrainingBatch) -> None:
    """Compare the last iteration's records with the batch that it was trained on."""
    path = folder / "trajectories" / "rollout-00003.jsonl"
    records = list(read_records(path))
    assert len(records) == 24
    for record in records:
        VALIDATOR.validate(record)
        rows = batch.rollout.trajectory_ids == record["group"] * 4096 + record["member"]
        assert record["sequence_lengths"] == batch.rollout.lengths[rows].tolist()
        ids = batch.rollout.input_ids[rows][batch.rollout.attention_mask[rows]]
        assert record["token_ids"] == ids.tolist()
        mask = batch.rollout.loss_mask[rows][batch.rollout.attention_mask[rows]]
        assert record["loss_mask"] == mask.int().tolist()
        number = 0
        for turn in record["turns"]:
            number += turn["summary"] is not None  # whose tokens are those of no turn
            at = batch.rollout.loss_mask[rows] & (batch.rollout.turn_index[rows] == number)
            wanted = batch.advantages[rows][at].tolist()
            assert turn["tokens"]["advantages"] == pytest.approx(wanted, abs=1e-4)
            number += 1
    shown = list(read_trajectories(index_file(path).entries))
    assert [len(each.turns) for each in shown] == [len(record["turns"]) for record in records]
