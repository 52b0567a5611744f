"""The classes of operations, and the profile of a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import cpu_profile
from ragen_pl.cli import entry_point
from tests.support.tiny_run import write_config


def test_every_second_has_one_place() -> None:
    own = {
        "aten::mm": 4.0,
        "aten::bmm": 1.0,
        "aten::mul": 2.0,
        "aten::copy_": 0.5,
        "aten::view": 0.25,
        "autograd::engine::evaluate_function: MmBackward0": 0.25,
        "MmBackward0": 0.5,
    }
    assert cpu_profile.divide(own, 10.0) == {
        "products": 5.0,
        "other kernels": 2.5,
        "dispatch": 1.0,
        "Python": 1.5,
    }


@pytest.mark.run
def test_a_run_is_divided_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "profile.json"
    given = [str(out), "--config", "tiny.yaml", "--trainer.max_epochs", "20"]
    short = ["--trainer.callbacks.first", "2", "--trainer.callbacks.iterations", "1"]
    run = entry_point.main
    monkeypatch.setattr(entry_point, "main", lambda arguments: run([*arguments, *short]))
    assert cpu_profile.main(given) == 0
    results = json.loads(out.read_text())
    assert sum(results["seconds"].values()) == pytest.approx(results["profiled_seconds"])
    assert min(results["seconds"].values()) > 0.0
    assert "without the profiler" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_without_a_file_to_write_it_prints_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cpu_profile.main(["--config", "tiny.yaml"]) == 2
    assert "usage" in capsys.readouterr().out
