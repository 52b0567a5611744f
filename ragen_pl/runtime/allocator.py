"""Keep freed memory in the process, where the C library allows it."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt."""


def retain_freed_memory() -> bool:
    """Tell the C library not to hand every freed tensor back to the system.

    On a CPU each tensor of more than 128 KiB would otherwise be fresh pages from the kernel, every
    time: for small models that is half of the run. Returns whether it was done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library than glibc
        return False
    settings = ((_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 30), (_TOP_PAD, 1 << 26))
    accepted = [mallopt(key, value) == 1 for key, value in settings]
    return all(accepted)
