"""A grid of runs, each the real command in a process of its own; resumable.

A cell's run folder is ``<folder>/<name>``, its output ``<folder>/<name>.log``, whose first line is
the command. A cell is done when the status in its ``results.json`` is finished or stopped and that
line is the command it would be run with now. A changed config *file* is not noticed: use a new
folder.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIT = (sys.executable, str(ROOT / "run.py"), "fit")
_DONE = ("finished", "stopped")
_LARGE = ("checkpoints", "policy")
"""Folders of a run that hold weights."""


@dataclass(frozen=True)
class Cell:
    """A run: its name, and the arguments after ``fit`` on the command line."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Where cells are run and how.

    Args:
        folder: Folder of every cell's run folder and log.
        jobs: Processes at a time, of one thread each.
        keep_weights: Whether a finished cell's checkpoints and policies stay.
        command: Command to which a cell's arguments are appended.
        poll_seconds: Seconds between two checks of the processes.
    """

    folder: Path
    jobs: int = 1
    keep_weights: bool = False
    command: tuple[str, ...] = FIT
    poll_seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; run at least 1 process at a time")

    def line(self, cell: Cell) -> list[str]:
        """Return the cell's whole command."""
        run_dir = str((self.folder / cell.name).resolve())
        return [*self.command, *cell.arguments, "--threads", "1", "--run_dir", run_dir]

    def log(self, cell: Cell) -> Path:
        return self.folder / f"{cell.name}.log"

    def results(self, cell: Cell) -> dict[str, Any] | None:
        """Return a cell's results; None where there are none, or they are unreadable."""
        path = self.folder / cell.name / "results.json"
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def is_done(self, cell: Cell) -> bool:
        """Whether this exact command has been run to its end."""
        results = self.results(cell)
        if results is None or results.get("status") not in _DONE or not self.log(cell).is_file():
            return False
        with self.log(cell).open(encoding="utf-8") as log:
            return log.readline().rstrip("\n") == shlex.join(self.line(cell))

    def run(self, cells: Sequence[Cell], report: Callable[[str], None] = print) -> list[Cell]:
        """Run the cells that are not done yet, in order; return those that failed, in order.

        Raises:
            ValueError: when two cells share a name.
        """
        if len({cell.name for cell in cells}) < len(cells):
            raise ValueError("two cells share a name, and so a run folder")
        waiting = [cell for cell in cells if not self.is_done(cell)]
        if len(waiting) < len(cells):
            report(f"{len(cells) - len(waiting)} of {len(cells)} runs are done already")
        progress = _Progress(len(waiting), self.jobs, report)
        running: dict[Cell, subprocess.Popen[bytes]] = {}
        failed: set[Cell] = set()
        try:
            with ending_on_sigterm():
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        cell = waiting.pop(0)
                        running[cell] = self._start(cell)
                        progress.began(cell)
                    for cell in [c for c, process in running.items() if process.poll() is not None]:
                        del running[cell]
                        if not self._finish(cell, progress):
                            failed.add(cell)
                    time.sleep(self.poll_seconds)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
        return [cell for cell in cells if cell in failed]

    def _start(self, cell: Cell) -> subprocess.Popen[bytes]:
        line = self.line(cell)
        self.log(cell).parent.mkdir(parents=True, exist_ok=True)
        self.log(cell).write_text(shlex.join(line) + "\n", encoding="utf-8")
        with self.log(cell).open("ab") as log:
            return subprocess.Popen(
                line,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def _finish(self, cell: Cell, progress: _Progress) -> bool:
        """Report how a cell ended; return whether it is done."""
        is_done = self.is_done(cell)
        lines = self.log(cell).read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines[1:]) if line.strip()), "no output")
        progress.ended(cell, None if is_done else f"{last} ({self.log(cell)})")
        if is_done and not self.keep_weights:
            for name in _LARGE:
                shutil.rmtree(self.folder / cell.name / name, ignore_errors=True)
        return is_done


def exit_code(failed: Sequence[Cell]) -> int:
    """List the failed cells after the report and return the process's exit status."""
    for cell in failed:
        print(f"failed: {cell.name}")
    return int(bool(failed))


class _Progress:
    """Progress after every cell: how many are done and how long the rest will take."""

    def __init__(self, total: int, jobs: int, report: Callable[[str], None]) -> None:
        self.total, self.jobs, self.report = total, jobs, report
        self._started: dict[Cell, float] = {}
        self._durations: list[float] = []

    def began(self, cell: Cell) -> None:
        self._started[cell] = time.monotonic()

    def ended(self, cell: Cell, failure: str | None) -> None:
        seconds = time.monotonic() - self._started.pop(cell)
        self._durations.append(seconds)
        count, left = len(self._durations), self.total - len(self._durations)
        mean = sum(self._durations) / count
        minutes = mean * left / self.jobs / 60
        how = "done" if failure is None else f"FAILED: {failure}"
        rest = f"{seconds:.0f} s, {minutes:.0f} min left"
        self.report(f"{count}/{self.total} {cell.name} {how}; {rest}")


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that the processes are ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
