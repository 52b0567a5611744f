"""Two ranks over NCCL: the iterations of one, and how much sooner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_day_parts.default_run import CONFIG, SHORT, SINGLE
from benchmarks.gpu_day_parts.fit_run import FitRun
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart

COMPARED = ("train/", "rollout/")
"""Beginnings of the metrics that do not depend on the number of ranks."""


def run(day: Day, record: Record) -> None:
    """Compare a short run on two devices with one on a single device."""
    if day.kind != "cuda":
        raise SkipPart("NCCL is for CUDA devices")
    import torch  # slow to import, which a part that cannot run need not do

    count = torch.cuda.device_count()
    if count < 2:
        raise SkipPart(f"two ranks need two CUDA devices, and here are {count}")
    compare(day, record, "gpu")


def compare(day: Day, record: Record, accelerator: str) -> None:
    """Record the largest relative difference of what both runs logged."""
    found = {}
    for ranks in (1, 2):
        began = time.monotonic()
        chosen = ["--config", "ddp.yaml"] if ranks > 1 else []
        chosen += [f"--trainer.accelerator={accelerator}", f"--trainer.devices={ranks}"]
        run = FitRun(f"{ranks}_ranks", (*CONFIG, *SHORT, *SINGLE))
        results = run.run(day, day.seconds / 2, chosen)
        record.figure(f"nccl/{ranks}_ranks", time.monotonic() - began, "s")
        found[ranks] = results["history"]
    gaps = relative_gaps(found[1], found[2])
    record.figure("nccl/largest_gap", max(gaps.values()))
    record.figure("nccl/compared", len(gaps))
    worst = max(gaps, key=lambda name: gaps[name])
    record.note(f"largest difference in {worst}")


def relative_gaps(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest relative difference of each metric over the iterations.

    Args:
        one: Values by iteration and metric; None where there is none.
        other: Those of the other run.

    Raises:
        ValueError: when the runs logged different iterations.
    """
    gaps: dict[str, float] = {}
    for name in one.keys() & other.keys():
        pairs = [
            (a, b)
            for a, b in zip(one[name], other[name], strict=True)
            if a is not None and b is not None
        ]
        if name.startswith(COMPARED) and pairs:
            gaps[name] = max(abs(a - b) / max(abs(a), abs(b), 1e-3) for a, b in pairs)
    return gaps
