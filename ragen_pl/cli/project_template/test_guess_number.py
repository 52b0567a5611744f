"""The environment keeps its contract, and a training of two iterations runs through."""

from __future__ import annotations

import json
from pathlib import Path

from guess_number import GuessNumber

from ragen_pl.cli import main
from ragen_pl.envs.contract_kit import assert_contract


def test_the_environment_keeps_its_contract() -> None:
    assert_contract(GuessNumber())


def test_two_iterations_run(tmp_path: Path) -> None:
    line = ["fit", "--config", "guess_number", "--run_dir", str(tmp_path), "--threads", "1"]
    line += ["--trainer.max_epochs", "2", "--data.evaluation.size", "4"]
    line += ["--data.rollout.num_groups", "2", "--data.rollout.group_size", "4"]
    line += ["--data.warm_start.iterations", "1", "--data.warm_start.demonstrations", "20"]
    assert main(line) == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert (results["status"], results["iterations"]) == ("finished", 2)
