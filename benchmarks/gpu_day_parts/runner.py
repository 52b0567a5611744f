"""Run parts one after the other, each in a process of its own with a time limit and a log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.gpu_day_parts.part import FOLDER, Day, Part, PartResult, Record, Status, write_json
from benchmarks.grid import ROOT, ending_on_sigterm

TAIL = 25
"""Lines of a log that go into the results."""
TINY_PATIENCE = 5.0
"""Factor of the time limits in a tiny day, on a machine that does other things as well."""
SHORTEST = 10.0
"""Seconds that must be left for another part to begin."""

CommandLine = Callable[[Part, Day], Sequence[str]]


def command_line(part: Part, day: Day) -> list[str]:
    """Return the command that runs a part."""
    return [sys.executable, "-m", "benchmarks.gpu_day_parts", part.name, day.to_json()]


@dataclass(frozen=True)
class Runner:
    """One call of the command.

    Args:
        day: Where and how the parts run.
        seconds: Time for all of them.
        retry: Whether parts that failed, ran out of their own time or stopped in time are tried
            again.
        report: Function that is told what happens.
        line: Function from a part to its command line.
        grace: Seconds between asking a process to end and ending it.
        shortest: Seconds that must be left for another part to begin.
    """

    day: Day
    seconds: float
    retry: bool = False
    report: Callable[[str], None] = print
    line: CommandLine = command_line
    grace: float = 10.0
    shortest: float = SHORTEST

    def file(self, part: Part, suffix: str) -> Path:
        """Return the path of a part's record, log or outcome."""
        return self.day.out / FOLDER / f"{part.name}{suffix}"

    def outcome(self, part: Part) -> PartResult | None:
        """Return how a part ended in this call or an earlier one; None where it never did, or where
        the file cannot be read."""
        try:
            text = self.file(part, ".outcome.json").read_text(encoding="utf-8")
            return PartResult.from_dict(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_due(self, part: Part) -> bool:
        """Whether a part is to be run."""
        found = self.outcome(part)
        if found is None or not found.is_result:
            return True
        is_whole = found.status is Status.DONE and not found.reason
        return self.retry and not is_whole

    def run(self, parts: Sequence[Part]) -> Iterator[PartResult]:
        """Run the parts that are due, in order, and yield how each ended."""
        end = time.monotonic() + self.seconds
        with ending_on_sigterm():
            for part in parts:
                if not self.is_due(part):
                    found = self.outcome(part)
                    assert found is not None
                    is_whole = found.status is Status.DONE and not found.reason
                    again = "" if is_whole else " (--retry runs it again)"
                    self.report(f"{part.name}: {found.status} in an earlier call{again}")
                    continue
                left = end - time.monotonic()
                if left < self.shortest:
                    self.report(f"{part.name}: no time is left; the same command goes on with it")
                    continue
                yield self._run(part, left)

    def _run(self, part: Part, left: float) -> PartResult:
        own = part.seconds * (TINY_PATIENCE if self.day.tiny else 1.0)
        limit = min(own or left, left)
        self.report(f"{part.name}: {part.title} (at most {limit:.0f} s)")
        for suffix in (".json", ".outcome.json"):
            self.file(part, suffix).unlink(missing_ok=True)
        log = self.file(part, ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with log.open("wb") as output:
            is_late, code = self._wait(part, limit, output.fileno())
        seconds = time.monotonic() - began
        record = Record.read(self.file(part, ".json"))
        status, reason = _ending(record, is_late, code)
        if is_late:
            has_own_limit = own > 0 and limit == own
            status = Status.OUT_OF_TIME if has_own_limit else Status.CUT
            reason = f"its {limit:.0f} s were over" if has_own_limit else "the call's time was over"
        outcome = PartResult(
            part.name,
            status,
            reason,
            round(seconds, 1),
            tuple(record.figures),
            tuple(record.notes),
            () if status in (Status.DONE, Status.SKIPPED) else tail(log),
        )
        write_json(self.file(part, ".outcome.json"), asdict(outcome))
        self.report(f"{part.name}: {status}{f' ({reason})' if reason else ''} in {seconds:.0f} s")
        return outcome

    def _wait(self, part: Part, limit: float, output: int) -> tuple[bool, int]:
        """Run a part's process; return whether its time was over, and its exit status."""
        process = subprocess.Popen(
            self.line(part, replace(self.day, seconds=limit)),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _search_path(), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the processes it starts end with it
        )
        with _ended_with(process, self.grace):
            try:
                return False, process.wait(limit)
            except subprocess.TimeoutExpired:
                return True, 0


def _ending(record: Record, is_late: bool, code: int) -> tuple[Status, str]:
    if record.skipped:
        return Status.SKIPPED, record.skipped
    if code == 0 and not is_late:
        return Status.DONE, record.unfinished
    if code < 0:
        return Status.FAILED, f"ended by {signal.Signals(-code).name}"
    return Status.FAILED, f"exit status {code}"


@contextmanager
def _ended_with(process: subprocess.Popen[bytes], grace: float) -> Iterator[None]:
    """End a process and all that it started when the context ends, however that comes."""
    try:
        yield
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # nobody of the group is left
        os.killpg(process.pid, number)


def _search_path() -> str:
    """Return the search path with this checkout first, so that nothing needs to be installed."""
    given = os.environ.get("PYTHONPATH")
    return str(ROOT) if not given else f"{ROOT}{os.pathsep}{given}"


def tail(log: Path) -> tuple[str, ...]:
    """Return the last lines of a log."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return tuple(text.rstrip("\n").split("\n")[-TAIL:])
