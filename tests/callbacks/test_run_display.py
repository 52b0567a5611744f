"""The display says what is happening, on a terminal and off it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from callbacks import Results, RunDisplay
from ragen_pl.types import TrajectoryGroup
from tests.doubles import TinyData, TinyModule, make_group, make_trainer


def mixed(iteration: int) -> list[TrajectoryGroup]:
    return [make_group([0.0, 1.0, 1.0, 2.0], group_id=i) for i in range(4)]


def fit(folder: Path, display: RunDisplay) -> None:
    module = TinyModule({"train/imitation_loss": 2.0})
    trainer = make_trainer(folder, 4, [display, Results((0.5,))], enable_progress_bar=True)
    trainer.fit(module, datamodule=TinyData(mixed, warm_iterations=2))


def test_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, RunDisplay(line_every=0.0))
    lines = capsys.readouterr().out.splitlines()
    told = "\n".join(lines)
    for text in (
        "iteration 1/4 · evaluating random on easy",
        "iteration 1/4 · warm start 1/2",
        "iteration 2/4 · warm start 2/2 · imitation loss 2.000",
        "iteration 3/4 · evaluating warm-started on hard",
        "iteration 3/4 · collecting 0/16 trajectories",
        "iteration 3/4 · collecting 7/16 trajectories",
        "iteration 3/4 · updating · success 0.75 · return 1.00",
        "iteration 4/4 · collecting 0/16 trajectories · success 0.75 · return 1.00 · 0:00:00 left",
        "iteration 4/4 · done",
        "finished; 4 iterations",
    ):
        assert text in told


def test_lines_are_rare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path, RunDisplay())
    lines = [line for line in capsys.readouterr().out.splitlines() if "iteration " in line]
    assert len(lines) == 2  # the first and the last


def test_a_live_bar_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    display = RunDisplay()
    fit(tmp_path, display)
    told = capsys.readouterr().out
    assert "2/4 |" in told
    assert "collecting 7/16 trajectories" in told
    assert "\r" in told
    assert "finished; 4 iterations" in told
    assert display._bar is None


def test_other_ranks_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = RunDisplay(line_every=0.0)
    display.disable()
    fit(tmp_path, display)
    assert "collecting 7" not in capsys.readouterr().out


def test_remaining_counts_the_phases_apart() -> None:
    display = RunDisplay()
    display._warm_iterations, display._done = 4, 2
    assert display.remaining(10) is None
    display._durations["warm_start"].extend([1.0, 1.0])
    assert display.remaining(10) is None
    display._durations["rl"].extend([10.0, 10.0, 70.0])
    assert display.remaining(10) == 2 * 1.0 + 6 * 10.0


def test_a_bad_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="line_every is -1"):
        RunDisplay(line_every=-1.0)


def test_a_run_without_a_known_end_is_counted_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = RunDisplay(line_every=0.0)
    trainer = make_trainer(tmp_path, -1, [display], max_steps=3, enable_progress_bar=True)
    trainer.fit(TinyModule(), datamodule=TinyData(mixed))
    told = capsys.readouterr().out
    assert "iteration 2 · " in told
    assert "-1" not in told
