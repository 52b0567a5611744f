"""A run is kept going from its last checkpoint until it has finished or cannot go on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.keep_going import BAD_CONFIG, INTERRUPTED, keep_going, main, run_command

KILLED, TERMINATED = -9, 143


class Play:
    """A run that ends with given statuses; a negative share of the time means no checkpoint."""

    def __init__(self, folder: Path, *ends: tuple[int, bool]) -> None:
        self.checkpoint = folder / "checkpoints/last.ckpt"
        self.ends, self.commands, self.now = list(ends), [], 0.0  # type: ignore[var-annotated]

    def start(self, command: list[str], _: float) -> int:
        self.commands.append(command)
        self.now += 60
        status, writes = self.ends.pop(0)
        if writes:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self.checkpoint.touch()
            os.utime(self.checkpoint, ns=(len(self.commands), len(self.commands)))
        return status

    def clock(self) -> float:
        return self.now

    def keep(self, hours: float = 8) -> int:
        folder = self.checkpoint.parent.parent
        return keep_going(["fit"], folder, hours, self.start, self.clock, lambda _: None)

    @property
    def resumed(self) -> list[bool]:
        return [command[-2:] == ["--ckpt_path", "last"] for command in self.commands]


def test_it_goes_on_from_the_last_checkpoint_until_it_has_finished(tmp_path: Path) -> None:
    play = Play(tmp_path, (KILLED, False), (TERMINATED, True), (1, True), (0, True))
    assert play.keep() == 0
    assert play.resumed == [False, False, True, True]
    assert not play.ends


@pytest.mark.parametrize("status", [BAD_CONFIG, INTERRUPTED])
def test_a_wrong_configuration_and_the_user_end_it(status: int, tmp_path: Path) -> None:
    play = Play(tmp_path, (TERMINATED, True), (status, True), (0, True))
    assert play.keep() == status
    assert len(play.ends) == 1


def test_it_gives_up_without_progress_alone(tmp_path: Path) -> None:
    lost, gained = (1, False), (1, True)
    play = Play(tmp_path, lost, lost, gained, lost, lost, lost, (0, True))
    assert play.keep() == 1
    assert len(play.ends) == 1, "three in a row, not three in all"


def test_it_ends_with_its_hours(tmp_path: Path) -> None:
    play = Play(tmp_path, *[(TERMINATED, True)] * 3, (0, True))
    assert play.keep(hours=2.5 / 60) == TERMINATED
    assert len(play.ends) == 1


def test_a_command_that_takes_too_long_is_terminated() -> None:
    waits = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); time.sleep(60)"
    assert run_command([sys.executable, "-c", waits], 1.0) in (TERMINATED, -signal.SIGTERM)
    assert run_command([sys.executable, "-c", "raise SystemExit(3)"], 60.0) == 3


def test_a_signal_is_passed_on_and_means_the_end() -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored in the background of a shell
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    assert run_command([sys.executable, "-c", "import time; time.sleep(60)"], 60.0) == INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    "argv",
    [
        ["--run_dir", "a"],
        ["--", "fit"],
        ["--run_dir", "a", "--", "fit", "--run_dir=b"],
        ["--run_dir", "a", "--", "fit", "--ckpt_path", "last"],
    ],
)
def test_arguments_that_it_sets_itself_are_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
