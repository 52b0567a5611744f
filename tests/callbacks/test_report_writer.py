"""The report that is kept current while a run trains, and never stops it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import callbacks.report_writer
from callbacks import ReportWriter
from callbacks.report_writer import WhenToWrite
from tests.support.report_runs import MODULE, play, stand_in, write_run


@pytest.mark.parametrize(
    ("write", "seen"),
    [
        ("validations", [False, False, True, True, True]),
        ("end", [False, False, False, False, True]),
        ("never", [False] * 5),
    ],
)
def test_when_it_is_written(tmp_path: Path, write: WhenToWrite, seen: list[bool]) -> None:
    assert play(ReportWriter(write), stand_in(write_run(tmp_path / "run"))) == seen


def test_its_path_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run")
    play(ReportWriter(), stand_in(run))
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert not any(play(ReportWriter(), stand_in(run, is_global_zero=False)))
    assert not (run / "environment.json").exists()


def test_versions_and_machine_are_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    play(ReportWriter("never"), stand_in(run))
    found = json.loads((run / "environment.json").read_text())
    assert {"python", "torch", "lightning", "platform", "processor", "command"} <= set(found)


@pytest.mark.parametrize("error", [OSError("disk full"), ValueError("x"), RecursionError("deep")])
def test_a_failure_is_told_once_and_stops_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(callbacks.report_writer, "build_report", fail)
    play(ReportWriter(), stand_in(write_run(tmp_path / "run")))
    assert capsys.readouterr().out == f"no report: {type(error).__name__}: {error}\n"


def test_an_interrupted_run_has_its_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    writer, trainer = ReportWriter("end"), stand_in(run)
    writer.setup(trainer, MODULE, "fit")
    writer.on_train_start(trainer, MODULE)
    writer.on_exception(trainer, MODULE, KeyboardInterrupt())
    assert (run / "report.html").exists()


def test_a_run_that_never_began_has_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    writer, trainer = ReportWriter(), stand_in(run)
    writer.setup(trainer, MODULE, "fit")
    writer.on_exception(trainer, MODULE, ValueError("wrong"))
    writer.teardown(trainer, MODULE, "fit")
    assert not (run / "report.html").exists()


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_trajectories is -1"):
        ReportWriter(max_trajectories=-1)
