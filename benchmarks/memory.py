"""Memory now and at its peak: resident memory of this process, or tensors on a GPU."""

from __future__ import annotations

from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mebibytes() -> float:
    """Return the largest resident size of this process so far, in MiB.

    Not from ``getrusage``, whose figure includes the parent's memory before this program started.

    Raises:
        ValueError: where the system is not Linux.
    """
    return _mebibytes("VmHWM")


def resident_mebibytes() -> float:
    """Return the resident size of this process now, in MiB.

    Raises:
        ValueError: where the system is not Linux.
    """
    return _mebibytes("VmRSS")


def _mebibytes(field: str) -> float:
    if not _STATUS.exists():
        raise ValueError("resident memory is read from /proc, which only Linux has")
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def forget_peak() -> None:
    """Reset the peak to the present size (Linux, see ``proc(5)``, ``clear_refs``)."""
    _CLEAR.write_text("5")


def device_mebibytes(device: str) -> float:
    """Return MiB now: of PyTorch's tensors on a GPU, of the process on a CPU."""
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else resident_mebibytes()


def device_peak_mebibytes(device: str) -> float:
    """Return MiB at the peak: of PyTorch's tensors on a GPU, of the process on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_mebibytes()


def forget_device_peak(device: str) -> None:
    """Reset the peak to the present size."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
