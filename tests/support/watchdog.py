"""Run the processes of a job and say where each of them was when it did not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.support.tiny_run import ROOT, environment


def run_together(commands: Sequence[Sequence[str]], folder: Path, patience: float) -> None:
    """Start one process per command and wait for all of them.

    Each rank is asked to keep what it does in ``rank-<n>.phase``.

    Raises:
        AssertionError: when they take longer than ``patience`` seconds, naming ranks and phases; or
            when one fails, with what it wrote to stderr last. No process is left behind.
    """
    with ExitStack() as stack:
        logs = [stack.enter_context((folder / f"{n}.log").open("w")) for n in range(len(commands))]
        processes = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**environment(), "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,  # a launcher's ranks end with it
            )
            for command, log in zip(commands, logs, strict=True)
        ]
        end = time.monotonic() + patience
        try:
            while any(process.poll() is None for process in processes):
                failed = [n for n, process in enumerate(processes) if process.poll()]
                assert not failed, f"process {failed[0]} failed: {_last_words(folder, failed[0])}"
                assert time.monotonic() < end, f"no end after {patience} s: {_whereabouts(folder)}"
                time.sleep(0.1)
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    for number, process in enumerate(processes):
        assert process.returncode == 0, _last_words(folder, number)


def _whereabouts(folder: Path) -> str:
    phases = sorted(folder.glob("rank-*.phase"))
    return "; ".join(f"{path.stem} was in {path.read_text()}" for path in phases) or "not begun"


def _last_words(folder: Path, number: int) -> str:
    return (folder / f"{number}.log").read_text()[-3000:]


def nodes(
    module: str, arguments: Sequence[object], port: int, ranks_each: int = 1
) -> list[list[str]]:
    """Return the commands of two nodes, each with as many ranks, on this machine."""
    facts: Mapping[str, object] = {
        "nnodes": 2,
        "nproc_per_node": ranks_each,
        "master_addr": "127.0.0.1",
        "master_port": port,
    }
    options = [f"--{name}={value}" for name, value in facts.items()]
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    return [
        [*launcher, f"--node_rank={rank}", "-m", module, *map(str, arguments)] for rank in range(2)
    ]
