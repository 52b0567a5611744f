"""The display says what is happening, on a terminal and off it."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from callbacks import Results, RunDisplay
from callbacks.run_display import _rounded
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import TinyData, TinyModule, make_group, make_trainer


def mixed(iteration: int) -> list[TrajectoryGroup]:
    return [make_group([0.0, 1.0, 1.0, 2.0], group_id=i) for i in range(4)]


def fit(folder: Path, display: RunDisplay) -> None:
    module = TinyModule({"train/imitation_loss": 2.0})
    trainer = make_trainer(folder, 4, [display, Results((0.5,))], enable_progress_bar=True)
    trainer.fit(module, datamodule=TinyData(mixed, warm_iterations=2))


def test_lines_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)  # the machine may be busy
    monkeypatch.setattr("callbacks.run_display.time", clock)
    fit(tmp_path, RunDisplay(line_every=0.0))
    lines = capsys.readouterr().out.splitlines()
    told = "\n".join(lines)
    for text in (
        "iteration 1/4 · evaluating random on easy",
        "iteration 1/4 · warm start 1/2",
        "iteration 2/4 · warm start 2/2 · imitation loss 2.000",
        "iteration 3/4 · evaluating warm-started on hard",
        "iteration 3/4 · rollout 0/16 trajectories",
        "iteration 3/4 · rollout 7/16 trajectories",
        "iteration 3/4 · updating · success 0.75 · return 1.00",
        "iteration 4/4 · rollout 0/16 trajectories · success 0.75 · return 1.00 · 0:00:00 left",
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
    assert "rollout 7/16 trajectories" in told
    assert "\r" in told
    assert "finished; 4 iterations" in told
    assert display._bar is None


def test_other_ranks_show_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = RunDisplay(line_every=0.0)
    display.disable()
    fit(tmp_path, display)
    assert "rollout 7" not in capsys.readouterr().out


def paced(display: RunDisplay, phase: str, *durations: float) -> None:
    for seconds in durations:
        display._paces[phase].add(seconds)


def test_remaining_counts_phases_and_validations_apart() -> None:
    display = RunDisplay()
    display._warm_iterations, display._done, display._validate_every = 4, 2, 5
    assert display.remaining(10) is None
    paced(display, "warm_start", 1.0, 1.0)
    assert display.remaining(10) is None
    paced(display, "rl", 10.0, 10.0)
    assert display.remaining(10) == 2 * 1.0 + 6 * 10.0
    display._validations.add(30.0)
    assert display.remaining(10) == 2 * 1.0 + 6 * 10.0 + 2 * 30.0
    display._done = 5
    assert display.remaining(10) == 5 * 10.0 + 1 * 30.0


def test_the_time_left_is_steady_under_a_load_that_comes_and_goes() -> None:
    """It once wandered between one and seventeen minutes: ten iterations made a median."""
    display = RunDisplay()
    display._done = 100
    paced(display, "rl", *[2.0] * 30)
    before = display.remaining(250)
    assert before == pytest.approx(300.0)
    paced(display, "rl", 60.0)  # a program woke up for one iteration
    assert display.remaining(250) == pytest.approx(300.0, rel=0.11)
    paced(display, "rl", *[2.0] * 10)
    assert display.remaining(250) == pytest.approx(300.0, rel=0.07)
    seen: list[float] = []
    for _ in range(20):  # the machine stays busy: half as fast
        paced(display, "rl", 4.0)
        seen.append(display.remaining(250) or 0.0)
    assert max(after / before for before, after in pairwise(seen)) < 1.06
    assert seen[-1] > 480.0


def test_an_evaluation_does_not_count_as_its_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("callbacks.run_display.time.monotonic", lambda: now[0])
    display, trainer = (
        RunDisplay(),
        SimpleNamespace(
            current_epoch=0, callback_metrics={}, max_epochs=9, sanity_checking=False, loggers=[]
        ),
    )
    display.disable()
    display._validate_every = 1
    module = SimpleNamespace(phase="rl")
    now[0] = 3.0
    display.on_validation_start(trainer, module)  # type: ignore[arg-type]
    now[0] = 23.0
    display.on_validation_end(trainer, module)  # type: ignore[arg-type]
    now[0] = 24.0
    display.on_train_epoch_end(trainer, module)  # type: ignore[arg-type]
    assert display._paces["rl"].mean == 4.0
    assert display._validations.mean == 20.0


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "0:00:07"), (72.0, "0:01:10"), (1234.0, "0:21:00")]
)
def test_the_time_left_is_no_finer_than_it_is(seconds: float, text: str) -> None:
    assert _rounded(seconds) == text


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


class ValidatedModule(TinyModule):
    """The same, which can be validated."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize("is_terminal", [True, False])
def test_an_evaluation_alone_has_no_iterations(
    is_terminal: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    display = RunDisplay(line_every=0.0)
    trainer = make_trainer(tmp_path, 4, [display], enable_progress_bar=True)
    trainer.validate(
        ValidatedModule(), dataloaders=DataLoader(TensorDataset(torch.zeros(1))), verbose=False
    )
    told = capsys.readouterr().out
    assert "evaluating" in told
    assert "iteration" not in told
    assert "/4" not in told
