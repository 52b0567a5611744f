"""Muon's and AdamW's moments go on together with another number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from tests.runs.test_resume_on_other_ranks import (
    DDP,
    FSDP,
    IN_A_FILE,
    Stages,
    arguments,
    ends_as_in_one_process,
    train_in_stages,
)

STAGES: Stages = (
    (3, FSDP),  # a folder of shards is read by
    (4, FSDP),  # a sharded run, whose folder is read by
    (5, ()),  # one process, whose file is read by
    (6, (*FSDP, *IN_A_FILE)),  # a sharded run, whose file is read by
    (7, DDP),  # a replicated one
)
"""The iteration up to which each runs, and on what."""


def with_muon(run_dir: str, iterations: int, *options: str) -> list[str]:
    # The orthogonalization rounds to bfloat16. Small steps keep what is sampled the same.
    small = ("--model.optimization.imitation_lr", "1e-5")
    muon = ("--model.optimization.muon", "{momentum: 0.9}")
    return arguments(run_dir, iterations, *muon, *small, *options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once in one process, and once in stages on one and on two ranks."""
    return train_in_stages(tmp_path_factory.mktemp("stages"), STAGES, with_muon)


def test_a_run_with_muon_that_changed_its_ranks_ends_as_in_one_process(folder: Path) -> None:
    ends_as_in_one_process(folder, STAGES)


def test_every_checkpoint_has_the_moments_of_both(folder: Path) -> None:
    """Policy and critic have seven matrices each, the critic's trained only from the third
    iteration on."""
    kinds = [(folder / f"after-{number}.ckpt").is_dir() for number in range(len(STAGES))]
    assert kinds == [True, True, False, False, False]
    for number in range(len(STAGES)):
        path = folder / f"after-{number}.ckpt"
        (state,) = AnyCheckpointIO().load_checkpoint(path)["optimizer_states"]
        kept = [frozenset(moments) for moments in state["state"].values()]
        assert kept.count(frozenset({"momentum_buffer"})) == (7 if number == 0 else 14)
        adamw = {"step", "exp_avg", "exp_avg_sq"}
        assert set(kept) == {frozenset({"momentum_buffer"}), frozenset(adamw)}
        factors = [group.get("lr_factor") for group in state["param_groups"]]
        assert factors == [2.0, 2.0, None, None]
