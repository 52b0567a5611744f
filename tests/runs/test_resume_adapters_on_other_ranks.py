"""Adapters go on with another number of ranks, from checkpoints that hold no base."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from tests.runs.test_resume_on_other_ranks import (
    FSDP,
    IN_A_FILE,
    Stages,
    ends_as_in_one_process,
    train_in_stages,
)

STAGES: Stages = (
    (3, FSDP),  # a folder of shards is read by
    (4, (*FSDP, *IN_A_FILE)),  # a sharded run, whose file is read by
    (5, ()),  # one process, whose file is read by
    (6, FSDP),  # a sharded run again
)
"""The iteration up to which each runs, and on what."""


def arguments(run_dir: str, iterations: int, *options: str) -> list[str]:
    backbone = ("--model.algorithm.advantage.init_args.critic.backbone", "shared")
    rates = ("--model.optimization.final_lr_fraction", "1.0", "--model.optimization.lr", "1e-3")
    quick = ("--trainer.check_val_every_n_epoch", "100", "--trainer.accelerator", "cpu")
    # A draw that falls within rounding of the border between two tokens gives one or the other. Of
    # few tokens none is likely to.
    few = ("--data.rollout.max_response_tokens", "16")
    length = ("--trainer.max_epochs", str(iterations), "--run_dir", run_dir)
    return [
        *("fit", "--config", "tiny", "--config", "lora"),
        *(*options, *backbone, *rates, *quick, *few, *length),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once in one process, and once in stages on one and on two ranks."""
    return train_in_stages(tmp_path_factory.mktemp("stages"), STAGES, arguments)


def test_adapters_that_changed_their_ranks_end_as_in_one_process(folder: Path) -> None:
    ends_as_in_one_process(folder, STAGES)


def test_no_checkpoint_holds_the_base(folder: Path) -> None:
    kinds = [(folder / f"after-{number}.ckpt").is_dir() for number in range(len(STAGES))]
    assert kinds == [True, False, False, True]
    for number in range(len(STAGES)):
        path = folder / f"after-{number}.ckpt"
        held = AnyCheckpointIO().load_checkpoint(path, weights_only=True)["state_dict"]
        assert len(held) == 2 * 7 + 2, "two matrices for each of seven projections, and the head"
        assert all("lora_" in name or "value_head" in name for name in held)
