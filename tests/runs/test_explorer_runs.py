"""A run whose warm start an explorer teaches: one command; resumed, it is not trained again, though
its warm start is shorter than the time between two checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.cli.entry_point import main
from ragen_pl.rollout.teachers import Explorer, Lessons, TeachingTask
from tests.support.extras import need
from tests.support.tiny_run import write_config

need("stable_baselines3", "explorer")

EXPLORER = (
    *("--data.warm_start.teacher", "Explorer", "--data.warm_start.teacher.steps", "3000"),
    *("--data.warm_start.teacher.starts", "20", "--data.warm_start.teacher.layers", "[32]"),
    *("--data.warm_start.iterations", "3", "--data.warm_start.difficulties", '["2-3"]'),
    *("--checkpoints.every_n_iterations", "10"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    return tmp_path


def test_a_resumed_run_does_not_train_the_explorer_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taught, given = list[int](), Explorer.teach

    def teach(self: Explorer, task: TeachingTask) -> Lessons:
        taught.append(task.first_seed)
        return given(self, task)

    def fit(*args: Any) -> int:
        return main(["fit", "--config", "tiny", *EXPLORER, *map(str, args)])

    monkeypatch.setattr(Explorer, "teach", teach)
    assert fit("--run_dir", "whole") == 0
    assert len(taught) == 1
    shown = capsys.readouterr().out
    assert "explorer" in shown
    assert "warm start: 8 demonstrations (by difficulty 2-3: 8); by an explorer (DQN" in shown
    with pytest.raises(SystemExit, match="9"):
        fit(
            *("--run_dir", "parts"),
            *("--trainer.callbacks+=tests.runs.test_resumed_runs.StopAt",),
            *("--trainer.callbacks.iteration", 2),
        )
    assert len(taught) == 2
    assert fit("--run_dir", "parts", "--ckpt_path", "last") == 0
    assert len(taught) == 2
    histories = [
        json.loads((folder / name / "results.json").read_text())["history"]
        for name in ("whole", "parts")
    ]
    assert histories[0]["train/imitation_loss"] == histories[1]["train/imitation_loss"]
    assert histories[0]["teacher/demonstrations"][0] == 8
    assert 0 <= histories[0]["teacher/explorer_success"][0] <= 1
