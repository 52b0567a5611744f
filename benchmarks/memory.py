"""Read how much memory this process has held at most."""

from __future__ import annotations

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mebibytes() -> float:
    """Return the largest resident size of this process so far, in MiB.

    Not ``getrusage``: its figure starts from what the parent held before this program was started.

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
    """Start the peak anew from what is held now (Linux, see ``proc(5)``, ``clear_refs``)."""
    _CLEAR.write_text("5")
