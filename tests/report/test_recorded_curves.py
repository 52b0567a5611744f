"""Metrics come from the event files of all processes of a run, or else from its results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from ragen_pl.report.recorded_curves import RecordedCurves, read_curves


def write_process(
    run: Path, began: float, steps: Iterable[int], value: float, *, seconds: float = 2.0
) -> Path:
    """Write the event file of a process that measured some iterations."""
    folder = run / "tensorboard"
    before = {*folder.glob("*")}
    writer = SummaryWriter(str(folder), filename_suffix=f".{began:g}")
    for place, step in enumerate(steps, start=1):
        for name in ("rollout/success", "time/update"):
            writer.add_scalar(name, value, step, walltime=began + seconds * place)
    writer.close()
    (file,) = {*folder.glob("*")} - before
    return file


def results(iterations: Sequence[int], status: str = "finished") -> dict[str, Any]:
    success = [0.25 for _ in iterations]
    return {"status": status, "history": {"iteration": [*iterations], "rollout/success": success}}


def read(run: Path, content: dict[str, Any]) -> tuple[RecordedCurves, list[str]]:
    notes = list[str]()
    return read_curves(run, content, notes), notes


def test_a_process_that_goes_on_from_an_earlier_iteration_replaces_what_came_after(
    tmp_path: Path,
) -> None:
    write_process(tmp_path, 1000.0, range(1, 9), 0.5)
    write_process(tmp_path, 5000.0, range(4, 7), 0.75)
    found, notes = read(tmp_path, results(range(1, 7)))
    curve = found.curves["rollout/success"]
    assert curve.iterations == (1, 2, 3, 4, 5, 6)
    assert curve.values == (0.5, 0.5, 0.5, 0.75, 0.75, 0.75)
    assert notes == []


def test_the_time_between_two_processes_is_nobodys(tmp_path: Path) -> None:
    write_process(tmp_path, 1000.0, range(1, 4), 0.5)
    write_process(tmp_path, 90_000.0, range(4, 7), 0.5)
    found, _ = read(tmp_path, results(range(1, 7)))
    assert found.seconds_of_iterations == {2: 2.0, 3: 2.0, 5: 2.0, 6: 2.0}


def test_a_process_that_only_scores_the_final_policy_replaces_nothing(tmp_path: Path) -> None:
    write_process(tmp_path, 1000.0, range(1, 4), 0.5)
    writer = SummaryWriter(str(tmp_path / "tensorboard"), filename_suffix=".late")
    writer.add_scalar("final/default/success", 1.0, 3, walltime=9000.0)
    writer.close()
    found, _ = read(tmp_path, results(range(1, 4)))
    assert found.curves["rollout/success"].iterations == (1, 2, 3)
    assert found.curves["final/default/success"].values == (1.0,)


@pytest.mark.parametrize("status", ["finished", "running"])
def test_iterations_that_the_events_lack_are_taken_from_the_results(
    tmp_path: Path, status: str
) -> None:
    """Those of a running process may still be in its buffer, which is no damage."""
    file = write_process(tmp_path, 1000.0, range(1, 31), 0.5)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 3])
    found, notes = read(tmp_path, results(range(1, 31), status))
    curve = found.curves["rollout/success"]
    assert curve.iterations == tuple(range(1, 31))
    assert set(curve.values) == {0.5, 0.25}
    lost = curve.values.count(0.25)
    told = [f"{lost} iterations are missing in tensorboard/; results.json holds them."]
    assert notes == (told if status == "finished" else [])


def test_without_either_there_are_no_curves(tmp_path: Path) -> None:
    found, notes = read(tmp_path, {})
    assert found.curves == {}
    assert notes == ["No metrics in tensorboard/; results.json holds none either."]
    found, notes = read(tmp_path, {"history": {"iteration": [1, None, 2], "rollout/x": [1, 2, 3]}})
    assert found.curves["rollout/x"].iterations == (1, 2)
