"""A snapshot of the learner is restored bit for bit, also in a run that was resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

from callbacks import echo_trap_detector
from ragen_pl.cli.entry_point import main
from ragen_pl.distributed.snapshot import restore_snapshot, take_snapshot
from ragen_pl.ops.echo_trap.assess import Assessment, Level
from tests.runs.test_resumed_runs import checkpoint, flat
from tests.support.doubles import Diary
from tests.support.tiny_run import write_config

OPTIONS = {
    "--rollback.times": 1,
    "--rollback.every_n_iterations": 2,
    "--rollback.min_age": 1,
    "--echo_trap.baseline_iterations": 3,
    "--echo_trap.stop": "false",
    "--trainer.callbacks+": "tests.support.doubles.Diary",
}


def red_from_the_fifth_on(history: list[Any], *args: Any) -> Assessment:
    return Assessment(Level.RED if len(history) >= 5 else Level.GREEN, "scripted", {})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(echo_trap_detector, "assess", red_from_the_fifth_on)
    write_config(tmp_path)
    return tmp_path


def fit(run_dir: str, *args: object) -> None:
    options = [f"{key}={value}" for key, value in OPTIONS.items()]
    rest = ["--run_dir", run_dir, *map(str, args)]
    assert main(["fit", "--config", "tiny", *options, *rest]) == 0


def equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.run
@pytest.mark.parametrize("muon", ["null", "{momentum: 0.9}"], ids=["AdamW", "Muon"])
def test_a_run_is_rolled_back_bit_for_bit_and_can_be_resumed(folder: Path, muon: str) -> None:
    optimizer = ("--model.optimization.muon", muon)
    fit("whole", "--trainer.max_epochs", 11, *optimizer)
    results = json.loads((folder / "whole/results.json").read_text())
    (event,) = results["rollbacks"]
    fallen, restored = event["iteration"] - 1, event["restored"] - 1
    assert (fallen, restored) == (
        7,
        3,
    )  # red in the fifth and sixth RL iteration; the snapshot of 5 was not trusted yet
    before, after = flat(Diary.states[restored]), flat(Diary.states[fallen + 1])
    assert before.keys() == after.keys()
    not_restored = {"/module/starpo/iteration", "/module/starpo/lr_scale"}
    different = {name for name in before if not equal(before[name], after[name])}
    assert different == not_restored
    assert any("exp_avg_sq" in name for name in before)
    assert any("momentum_buffer" in name for name in before) == (muon != "null")
    assert Diary.cache_versions[fallen + 1] == -1
    rates = dict(zip(results["history"]["iteration"], results["history"]["train/lr"], strict=True))
    assert rates[fallen + 2] < 0.6 * rates[fallen]
    assert results["history"]["collapse/rollbacks"][-1] == 1

    fit("parts", "--trainer.max_epochs", 7, *optimizer)
    fit("parts", "--trainer.max_epochs", 8, "--ckpt_path", "last", *optimizer)
    fit("parts", "--trainer.max_epochs", 11, "--ckpt_path", "last", *optimizer)
    whole, parts = checkpoint("whole"), checkpoint("parts")
    for key in ("state_dict", "optimizer_states", "starpo", "epoch", "global_step", "callbacks"):
        one, other = flat(whole[key]), flat(parts[key])
        names = [n for n in one if "Results" not in n]
        assert names == [n for n in other if "Results" not in n]
        for name in names:
            assert equal(one[name], other[name]), name


def test_frozen_weights_are_left_out_and_a_snapshot_can_be_restored_twice() -> None:
    class Two(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.moving = torch.nn.Linear(2, 2)
            self.fixed = torch.nn.Linear(2, 2).requires_grad_(False)

    module = Two()
    optimizer = torch.optim.AdamW(module.moving.parameters(), lr=0.1)

    def step() -> None:
        torch.autograd.backward(module.moving.weight.square().sum())
        optimizer.step()
        optimizer.zero_grad()

    step()
    snapshot = take_snapshot(module, [optimizer])
    assert set(snapshot["weights"]) == {"moving.weight", "moving.bias"}
    weight, kept = module.moving.weight, module.moving.weight.detach().clone()
    ends = []
    for _ in range(2):
        step()
        step()
        ends.append(weight.detach().clone())
        restore_snapshot(snapshot, module, [optimizer])
        assert torch.equal(module.moving.weight, kept)
    assert module.moving.weight is weight  # in place: the optimizer still has it
    assert torch.equal(*ends)


def test_an_optimizer_that_came_after_a_snapshot_forgets_its_moments() -> None:
    class One(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1, bias=False)

    module = One()
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.1) for _ in range(2)]
    torch.autograd.backward(module.layer.weight.square().sum())
    for optimizer in optimizers:
        optimizer.step()
    earlier = take_snapshot(module, optimizers[:1])
    restore_snapshot(earlier, module, optimizers)
    assert optimizers[0].state
    assert not optimizers[1].state
    restore_snapshot(take_snapshot(module, optimizers), module, optimizers[:1])
