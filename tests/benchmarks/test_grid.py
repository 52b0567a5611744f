"""Running cells with a stand-in for the real command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.grid import ROOT, Cell, Grid

STAND_IN = """
import json, os, pathlib, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
folder = pathlib.Path(options["--run_dir"])
(folder / "policy" / "last").mkdir(parents=True, exist_ok=True)
with (folder / "calls").open("a") as calls:
    calls.write("x")
print("threads", os.environ["OMP_NUM_THREADS"], options["--threads"])
if options["--ending"] == "crash":
    time.sleep(0.3)
    sys.exit("it broke")
facts = {"status": options["--ending"], "history": {}}
(folder / "results.json").write_text(json.dumps(facts))
"""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    return Grid(tmp_path / "out", 2, command=(sys.executable, str(script)), poll_seconds=0.01)


def cell(name: str, ending: str = "finished") -> Cell:
    return Cell(name, ("--ending", ending))


def calls(grid: Grid, name: str) -> int:
    return len((grid.folder / name / "calls").read_text())


def test_what_is_done_is_not_run_again(grid: Grid) -> None:
    said: list[str] = []
    assert grid.run([cell("a/one"), cell("a/two", "stopped")], said.append) == []
    assert [line.partition(" ")[0] for line in said] == ["1/2", "2/2"]
    assert "0 min left" in said[-1]
    again: list[str] = []
    assert grid.run([cell("a/one"), cell("a/two", "stopped"), cell("b")], again.append) == []
    assert again[0] == "2 of 3 runs are done already"
    assert again[1].startswith("1/1 b done")
    assert (calls(grid, "a/one"), calls(grid, "a/two"), calls(grid, "b")) == (1, 1, 1)
    assert "threads 1 1" in grid.log(cell("b")).read_text()


def test_a_failure_stops_no_other_run_and_is_run_again(grid: Grid) -> None:
    said: list[str] = []
    cells = [cell("bad", "crash"), cell("half", "interrupted"), cell("good")]
    assert grid.run(cells, said.append) == cells[:2], "in the order given, though bad ends last"
    (line,) = [line for line in said if " bad " in line]
    assert "FAILED: it broke" in line
    assert "bad.log" in line
    assert grid.run(cells, said.append) == cells[:2]
    assert (calls(grid, "bad"), calls(grid, "half"), calls(grid, "good")) == (2, 2, 1)


def test_another_command_is_another_run(grid: Grid) -> None:
    said: list[str] = []
    grid.run([cell("a")], said.append)
    assert not grid.is_done(cell("a", "stopped"))
    grid.run([cell("a", "stopped")], said.append)
    assert calls(grid, "a") == 2
    assert grid.is_done(cell("a", "stopped"))


def test_weights_are_kept_where_configured(grid: Grid) -> None:
    said: list[str] = []
    grid.run([cell("a")], said.append)
    assert not (grid.folder / "a" / "policy").exists()
    keeping = Grid(grid.folder, command=grid.command, keep_weights=True, poll_seconds=0.01)
    keeping.run([cell("b")], said.append)
    assert (grid.folder / "b" / "policy" / "last").is_dir()


def test_what_cannot_be_read_is_not_done(grid: Grid) -> None:
    grid.run([cell("a")], lambda _: None)
    (grid.folder / "a" / "results.json").write_text('{"status": "fini')
    assert not grid.is_done(cell("a"))


def test_names_are_folders(grid: Grid) -> None:
    with pytest.raises(ValueError, match="share a name"):
        grid.run([cell("a"), cell("a", "stopped")])
    with pytest.raises(ValueError, match="jobs is 0"):
        Grid(grid.folder, 0)


def test_sigterm_ends_the_processes_too(tmp_path: Path) -> None:
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import os, sys, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n")
    program = (
        "import pathlib, sys\nfrom benchmarks.grid import Cell, Grid\n"
        f"Grid(pathlib.Path({str(tmp_path)!r}), command=({sys.executable!r}, {str(sleeper)!r}),"
        " poll_seconds=0.01).run([Cell('a', ())])"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    log = tmp_path / "a.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and len(log.read_text().split("\n")) > 2):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int(log.read_text().split("\n")[1])
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
