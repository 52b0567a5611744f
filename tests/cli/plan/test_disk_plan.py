"""The planned size of a run folder against files that a run wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen_pl.cli.configured_parts import configured_parts
from ragen_pl.cli.doctor.memory import planner_of
from ragen_pl.cli.entry_point import main
from ragen_pl.cli.plan.disk import DiskPlan
from tests.support.tiny_run import write_config

KL = ("--model.algorithm.kl", "{coef: 0.1}")
ADAPTERS = ("--model.lora", "{rank: 32, alpha: 32}")
SMALL = 100_000
"""Bytes of a checkpoint beside weights and moments: configuration, vocabulary, callbacks."""


def size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files)


@pytest.mark.parametrize("options", [KL, ADAPTERS, (*KL, *ADAPTERS)], ids=["kl", "lora", "both"])
def test_checkpoints_and_policies_have_the_planned_size(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    large = ("--model.policy.hidden_size", "128", "--model.policy.intermediate_size", "256")
    arguments = ["--config", str(tmp_path / "tiny.yaml"), *large, *options]
    planned = DiskPlan.of(planner_of(configured_parts(arguments)).counts)
    assert main(["fit", *arguments, "--run_dir", "run", "--trainer.max_epochs", "5"]) == 0
    last = size(tmp_path / "run/checkpoints/last.ckpt")
    assert 0 <= last - planned.checkpoint < SMALL + 0.03 * last
    (weights,) = (tmp_path / "run/policy/last").glob("*.safetensors")
    assert size(weights) == pytest.approx(planned.export, rel=0.02)


def test_a_run_folder_holds_three_checkpoints_two_policies_and_drafts() -> None:
    disk = DiskPlan(checkpoint=100, export=10)
    assert (disk.total("always"), disk.total("end")) == (430, 420)
