"""An evaluation by itself is told apart from the training it is of."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    EventAccumulator,
)

from ragen_pl.cli.entry_point import main
from tests.support.tiny_run import write_config


def test_an_evaluation_does_not_log_into_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    assert main(["fit", "--config", "tiny", "--trainer.max_epochs", "1"]) == 0
    run_dir = tmp_path / "runs/tiny"
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    evaluate = ["validate", "--config", "tiny", "--ckpt_path"]
    assert main([*evaluate, "last"]) == 0
    assert "biased upwards" not in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before
    assert main([*evaluate, "best", "--trainer.logger", "true"]) == 0
    assert "biased upwards" in capsys.readouterr().out
    assert all(path.read_bytes() == held for path, held in before.items())
    logged = EventAccumulator(str(run_dir / "tensorboard-validate")).Reload()
    steps = [event.step for event in logged.Scalars("val/default/success")]
    assert steps == [1]  # iteration, of three updates
    assert "step" not in logged.Tags()["scalars"]
