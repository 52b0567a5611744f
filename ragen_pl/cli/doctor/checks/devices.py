"""Devices and the links between them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

import torch

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.bf16_speed import bf16_slowdown, slow_bf16_warning
from ragen_pl.runtime.findings import Finding, failure, ok, warning
from ragen_pl.runtime.threads import usable_cores

_SLOW_LINKS = {"SYS", "NODE", "PHB"}
"""Links through a processor, by the names of ``nvidia-smi topo -m``."""


def check_devices(subject: ExaminedRun) -> Iterator[Finding]:
    """Name the devices; fail if more are configured than there are, warn of a precision that makes
    a CPU slower."""
    config = subject.parts.trainer_config if "parts" in subject.made else None
    wanted = None if config is None else str(config.devices)
    accelerator = "auto" if config is None else str(config.accelerator)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        yield ok("the GPU of this Mac (mps)")
        return
    if accelerator in ("gpu", "cuda") and not count:
        yield failure(
            f"trainer.accelerator is {accelerator}, but there is no GPU that PyTorch can use",
            "set trainer.accelerator to auto, or install a PyTorch build for this machine's GPU",
        )
        return
    if not count or accelerator == "cpu":
        precision = "32-true" if config is None else subject.parts.precision
        if told := slow_bf16_warning(precision, torch.device("cpu")):
            yield warning(told, "set trainer.precision to 32-true")
            return
        yield ok(
            f"no GPU is used: the run computes on the CPU, {usable_cores()} cores; products in "
            f"bfloat16 (bf16-mixed) take {bf16_slowdown():.1f} times as long as in float32"
        )
        return
    if wanted is not None and wanted.isdigit() and int(wanted) > count:
        yield failure(
            f"trainer.devices is {wanted}, but there are {count} GPUs",
            f"set trainer.devices to {count}, or use more nodes (trainer.num_nodes)",
        )
        return
    names = Counter(torch.cuda.get_device_name(index) for index in range(count))
    text = ", ".join(f"{number} × {name}" for name, number in names.items())
    if count == 1:
        yield ok(text)
        return
    links = link_counts(_topology())
    text += "; links: " + (", ".join(f"{n} {kind}" for kind, n in links.items()) or "unknown")
    slow = sorted(_SLOW_LINKS & set(links))
    if slow:
        yield warning(
            f"{text}: {', '.join(slow)} go through a processor, so that gradients and shards "
            "travel slowly",
            "train on GPUs with NVLink between them (CUDA_VISIBLE_DEVICES), or on fewer of them",
        )
        return
    yield ok(text)


def _topology() -> str:
    """Return what ``nvidia-smi topo -m`` prints; empty without that program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        found = subprocess.run(
            [program, "topo", "-m"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout


def link_counts(topology: str) -> dict[str, int]:
    """Count the pairs of GPUs by the kind of their link, from ``nvidia-smi topo -m``."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines()]
    rows = [row for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    kinds: Counter[str] = Counter()
    for number, row in enumerate(rows):
        kinds.update(re.sub(r"^NV\d+$", "NVLink", kind) for kind in row[number + 2 : len(rows) + 1])
    return dict(kinds)
