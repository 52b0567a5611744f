"""Resident memory of this process, now and at its peak."""

from __future__ import annotations

from pathlib import Path

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
