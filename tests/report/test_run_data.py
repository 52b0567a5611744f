"""A run folder is read as far as it goes, and what is missing is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ragen_pl.report.page import build_report
from ragen_pl.report.run_data import RunReader
from tests.support.report_runs import record, write_records, write_run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("report") / "whole")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_whole_run_is_read(run: Path) -> None:
    data = RunReader(run).read()
    assert data.name == "run"
    assert data.status == "finished"
    assert data.totals is not None
    assert data.totals.iterations == 40
    assert [entry.policy for entry in data.evaluations] == ["random", "warm-started", "final"]
    assert data.curves["rollout/success"].iterations == tuple(range(1, 41))
    assert data.curves["rollout/success"].last == pytest.approx(0.5)
    assert data.curves["val/default/success"].iterations == (10, 20, 30, 40)
    assert set(data.seconds_of_iterations) <= set(range(2, 41))
    assert [(event.iteration, event.level) for event in data.alarm] == [(20, "amber")]
    assert len(data.entries) == 8
    assert data.notes == ("No versions of the environment: environment.json is missing.",)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.yaml", "No configuration: config.yaml is missing"),
        ("results.json", "No results: results.json is missing"),
        ("tensorboard", "No metrics in tensorboard/; results.json holds them"),
        ("trajectories", "No trajectories"),
    ],
)
def test_a_missing_part_is_said(run: Path, name: str, said: str) -> None:
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert any(note.startswith(said) for note in RunReader(run).read().notes)


def test_without_events_the_history_gives_the_curves(run: Path) -> None:
    shutil.rmtree(run / "tensorboard")
    curves = RunReader(run).read().curves
    assert curves["rollout/success"].values == (0.1, 0.2)
    assert "phase" not in curves


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"a": ' * 5000, "\udcff"])
@pytest.mark.parametrize("name", ["results.json", "config.yaml", "environment.json"])
def test_a_damaged_file_is_said(run: Path, name: str, text: str) -> None:
    (run / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    data = RunReader(run).read()
    assert any(name in note for note in data.notes)
    assert data.curves


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "data: 3"),
        ("config.yaml", "data: {evaluation: 5, eval_sets: abc, envs: [1]}"),
        ("results.json", '{"evaluations": 3, "seconds": 1}'),
        ("results.json", '{"seconds": NaN, "iterations": 3, "trajectories": Infinity}'),
        ("results.json", '{"history": {"iteration": [null, 2], "rollout/success": [1, "x"]}}'),
    ],
)
def test_values_of_other_kinds_are_left_out(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text)
    assert "Success" in build_report([RunReader(run).read()])


@pytest.mark.parametrize("key", ["iteration", "seed", "temperature", "weight"])
def test_lines_with_numbers_that_are_none_are_left_out(run: Path, key: str) -> None:
    line = record(seed=5) | {key: float("inf")}
    write_records(run, "rollout-00020.jsonl", [line])
    data = RunReader(run).read()
    assert any(note.startswith("1 line of trajectories/rollout-00020") for note in data.notes)
    build_report([data])


def test_evaluations_of_another_version_are_left_out(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    results["evaluations"][0] = {"policy": "random"}
    results["evaluations"].append("nonsense")
    (run / "results.json").write_text(json.dumps(results))
    data = RunReader(run).read()
    assert [entry.policy for entry in data.evaluations] == ["warm-started", "final"]
    assert any(note.startswith("2 evaluations") for note in data.notes)


def test_half_written_lines_are_left_out_and_counted(run: Path) -> None:
    path = write_records(run, "rollout-00020.jsonl", [record(seed=5), record(seed=6)])
    whole = path.read_text()
    path.write_text(f"{whole}\n[]\n{{}}\nnull\n{whole[:100]}")
    data = RunReader(run).read()
    assert [e.seed for e in data.entries if e.path == path] == [5, 6]
    assert any(note.startswith("4 lines of trajectories/rollout-00020") for note in data.notes)


def test_a_run_that_grows_is_read_again(run: Path) -> None:
    reader = RunReader(run)
    before = reader.read()
    write_records(run, "rollout-00020.jsonl", [record(seed=5)])
    assert len(reader.read().entries) == len(before.entries) + 1


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no run: none of config\.yaml"):
        RunReader(tmp_path).read()
    with pytest.raises(ValueError, match="is no folder"):
        RunReader(tmp_path / "absent").read()


def test_a_first_rank_that_was_killed_with_the_others_has_failed(run: Path) -> None:
    """It had no time to write so, and its results say that the run goes on."""
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"status": "running"}))
    assert RunReader(run).read().status == "running"
    (run / "failed").mkdir()
    (run / "failed/rank37.txt").write_text("rank 37 on n4, iteration 9: OSError: gone\n\nTraceback")
    data = RunReader(run).read()
    assert data.status == "failed"
    assert data.reason.startswith("rank 37 on n4, iteration 9: OSError: gone (")
    lost = {"status": "failed", "reason": "RuntimeError: gloo: Connection closed by peer"}
    (run / "results.json").write_text(json.dumps(results | lost))
    assert RunReader(run).read().reason == data.reason
    (run / "results.json").write_text(json.dumps(results))
    assert RunReader(run).read().status == "finished", "of an evaluation after the run"
