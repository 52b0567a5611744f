"""Two ranks over NCCL: the iterations of one, and how much sooner."""

from __future__ import annotations

import time

from benchmarks.gpu_day_parts.default_run import CONFIG, SHORT, SINGLE
from benchmarks.gpu_day_parts.fit_run import FitRun
from benchmarks.gpu_day_parts.part import Day, Record, SkipPart

COMPARED = ("rollout/success", "train/policy_loss", "train/value_loss", "train/grad_norm_policy")


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
    gaps = [
        abs(one - two) / max(abs(one), 1e-6)
        for name in COMPARED
        for one, two in zip(found[1].get(name, ()), found[2].get(name, ()), strict=True)
        if one is not None
    ]
    record.figure("nccl/largest_gap", max(gaps))
    record.figure("nccl/compared", len(gaps))
