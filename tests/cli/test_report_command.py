"""``run.py report`` writes a page about runs, or says in one line why it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ragen_pl.cli.entry_point import main
from tests.support.report_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("command") / "plan")  # named like a command


def test_one_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert f"report: {run / 'report.html'}" in capsys.readouterr().out
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "keys differ from the default" in text


def test_several_runs_to_a_file(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    page = tmp_path / "pages" / "two.html"
    assert main(["report", str(run), str(other), "--out", str(page)]) == 0
    assert "paired start by start" in page.read_text(encoding="utf-8")
    assert main(["report", str(run), str(other)]) == 0
    assert (run / "comparison.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "report: the following arguments are required: RUN"),
        (["absent"], "report: absent is no folder"),
        (["."], "report: . holds no run"),
        (["plan", "plan"], "a run is named twice"),
        (["plan", "--max_trajectories", "-1"], "--max_trajectories is -1"),
        (["plan", "--out", "plan/tensorboard"], "tensorboard cannot be written"),
    ],
)
def test_what_is_wrong_is_said(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    (tmp_path / "plan").symlink_to(run)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path if "." not in arguments else tmp_path / "empty")
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err
