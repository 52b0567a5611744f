"""Keep a long run going across interruptions: start it, and go on from its last checkpoint.

    python benchmarks/keep_going.py --hours 8 --run_dir runs/night -- fit --config sokoban …

What follows ``--`` are the arguments of ``run.py``. The run is started again with ``--ckpt_path
last`` after a signal or a crash, until it has finished, the hours are over (it then gets SIGTERM
and can be resumed), its configuration is wrong, or it fails repeatedly without a new checkpoint.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

RUN = Path(__file__).resolve().parent.parent / "run.py"
BAD_CONFIG, INTERRUPTED = 2, 130
_PATIENCE = 3
"""Failures in a row without a new checkpoint after which the run is given up."""
_PAUSE_S = 10.0
"""Seconds before a run is started again."""
_GRACE_S = 300.0
"""Seconds that a run has to stop between two turns after SIGTERM."""

Start = Callable[[list[str], float], int]
"""Function that runs a command for at most some seconds and returns its exit status."""


def keep_going(
    arguments: Sequence[str],
    run_dir: Path,
    hours: float,
    start: Start,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Run until the run has finished or cannot go on; return the last exit status.

    Args:
        arguments: Arguments of ``run.py``, without ``--run_dir`` and ``--ckpt_path``.
        run_dir: The run's folder.
        hours: Time after which it is stopped.
        start: Function that runs a command.
        clock: Function that returns the time in seconds.
        pause: Function that waits for some seconds.
    """
    end, fruitless = clock() + 3600 * hours, 0
    checkpoint = run_dir / "checkpoints/last.ckpt"
    while True:
        before = _stamp(checkpoint)
        command = [sys.executable, str(RUN), *arguments, "--run_dir", str(run_dir)]
        if before is not None:
            command += ["--ckpt_path", "last"]
        status = start(command, end - clock())
        if status in (0, BAD_CONFIG, INTERRUPTED):
            return status
        fruitless = fruitless + 1 if _stamp(checkpoint) == before else 0
        if fruitless == _PATIENCE:
            print(f"given up: {_PATIENCE} times in a row without a new checkpoint", flush=True)
            return status
        if clock() + _PAUSE_S >= end:
            print("the hours are over; the same command goes on from the last checkpoint")
            return status
        print(f"ended with status {status}; going on in {_PAUSE_S:.0f} s", flush=True)
        pause(_PAUSE_S)


def _stamp(checkpoint: Path) -> int | None:
    """Return when a checkpoint, a file or a folder of shards, was written; None without one."""
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else None


def run_command(command: list[str], seconds: float) -> int:
    """Run a command; send SIGTERM when its time is over, and pass SIGINT and SIGTERM on."""
    process = subprocess.Popen(command)
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        process.send_signal(signal.SIGTERM)

    former = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            status = process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                status = process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    return INTERRUPTED if stopped and status else status


def main(argv: Sequence[str]) -> int:
    """Parse the arguments and keep a run going; return its last exit status."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    own, given = list(argv[:at]), list(argv[at + 1 :])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run_dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--hours", type=float, default=8.0, help="time after which it is stopped")
    options = parser.parse_args(own)
    keys = {word.partition("=")[0] for word in given} & {"--run_dir", "--ckpt_path"}
    if not given:
        parser.error("give the arguments of run.py after --")
    if keys:
        parser.error(f"{' and '.join(sorted(keys))} after --: this program sets them")
    return keep_going(given, options.run_dir, options.hours, run_command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
