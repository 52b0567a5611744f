"""A run of the real command that stops in time and goes on in the next call."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_day_parts.part import Day, Record
from benchmarks.grid import FIT, ROOT

_MARGIN = 25.0
"""Seconds before a part's limit at which its run is asked to end: it writes its results then."""
_ENDED = (0, 128 + signal.SIGTERM)
_FIRST = 5
"""Iterations of RL that are not counted in the speed: kernels are chosen and memory is taken."""


@dataclass(frozen=True)
class FitRun:
    """A run of ``run.py fit``.

    Args:
        name: Name of its folder in the day's folder ``runs``.
        options: Options besides device and folder.
    """

    name: str
    options: tuple[str, ...]

    def folder(self, day: Day) -> Path:
        return (day.out / "runs" / self.name).resolve()

    def line(self, day: Day, device: Sequence[str] | None = None) -> list[str]:
        """Return the command, which goes on with what is in the folder."""
        folder = self.folder(day)
        is_begun = any((folder / "checkpoints").glob("last*"))
        again = ["--ckpt_path", "last"] if is_begun else []
        chosen = fit_options(day) if device is None else device
        return [*FIT, *self.options, *chosen, "--run_dir", str(folder), *again]

    def run(self, day: Day, seconds: float, device: Sequence[str] | None = None) -> dict[str, Any]:
        """Run it for so long at most, and return its results.

        Args:
            day: Where and how the parts run.
            seconds: Time for it.
            device: Options that choose the devices, in place of the day's.

        Raises:
            RuntimeError: when the command fails, or leaves no results.
        """
        line, folder = self.line(day, device), self.folder(day)
        if "--ckpt_path" not in line:  # ended before its first checkpoint
            shutil.rmtree(folder, ignore_errors=True)
        print(shlex.join(line), flush=True)
        process = subprocess.Popen(line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        try:
            code = process.wait(max(1.0, seconds - _MARGIN))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            code = process.wait(_MARGIN - 5)
        if code not in _ENDED:
            raise RuntimeError(f"the run ended with exit status {code}")
        results = folder / "results.json"
        if not results.is_file():
            raise RuntimeError(f"{seconds:.0f} s were too short for the run's first results")
        return dict(json.loads(results.read_text(encoding="utf-8")))


def fit_options(day: Day) -> list[str]:
    """Return the options of ``run.py fit`` that choose the device."""
    if day.accelerator is not None:
        return [
            f"--trainer.accelerator.class_path={day.accelerator}",
            "--trainer.strategy.class_path=lightning.pytorch.strategies.SingleDeviceStrategy",
            f"--trainer.strategy.init_args.device={day.device}",
        ]
    return [
        f"--trainer.accelerator={'gpu' if day.kind == 'cuda' else 'cpu'}",
        "--trainer.devices=1",
    ]


def record_run(record: Record, name: str, results: Mapping[str, Any], began: float) -> None:
    """Record how far a run came, its speed, and its scores."""
    history = results["history"]
    record.figure(f"{name}/iterations", results["iterations"])
    record.figure(f"{name}/seconds", results["seconds"], "s")
    record.figure(f"{name}/call_seconds", time.monotonic() - began, "s")
    for phase in ("rollout", "score_pass", "update"):
        values = [x for x in history.get(f"time/{phase}", ()) if x is not None]
        if values:
            record.figure(f"{name}/{phase}_seconds", median(values[_FIRST:] or values), "s")
    for key in ("train/log_prob_gap", "rollout/success", "train/skipped_steps"):
        values = [x for x in history.get(key, ()) if x is not None]
        if values:
            record.figure(f"{name}/{key}", values[-1])
    is_whole = results["status"] == "finished"
    for entry in results["evaluations"]:
        if entry["policy"] == "final" and not is_whole:
            continue  # a run that was cut short says nothing of what a whole one reaches
        known = (entry.get(key) for key in ("policy", "eval_set", "temperature"))
        label = "/".join(str(each) for each in known if each is not None)
        record.figure(f"{name}/success/{label}", entry["success"])
    if not is_whole:
        record.stop(f"{results['status']} after {results['iterations']} iterations")
