"""The C library's memory allocator, set up to keep freed memory in the process, up to a limit."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

MOST_RETAINED = 1 << 31
"""Bytes of freed memory that a process may keep: the passes of small models need less, and in those
of large ones new pages take little of the time."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt."""
_MEMORY = Path("/proc/self/statm")
"""Pages of this process: of its address space, resident, and of these shared with files, …"""


class _HeapFacts(ctypes.Structure):
    """The fields of glibc's ``mallinfo2``, which the function returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
    hblkhd: int
    """Bytes in use in blocks that are mapped one by one."""
    uordblks: int
    """Bytes in use in all heaps."""


def retain_freed_memory() -> bool:
    """Keep freed memory in the process instead of returning it to the system.

    On a CPU every tensor of more than 128 KiB would otherwise be allocated as new pages by the
    kernel: for small models that is half of a run's time. Call ``trim_retained_memory`` where much
    has been freed.

    Returns:
        Whether the settings were accepted; False outside Linux and glibc.
    """
    mallopt = _glibc_function("mallopt")
    if mallopt is None:
        return False
    settings = ((_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 30), (_TOP_PAD, 1 << 26))
    accepted = [mallopt(key, value) == 1 for key, value in settings]
    return all(accepted)


def trim_retained_memory(most: int = MOST_RETAINED) -> bool:
    """Return freed memory to the system if the process holds more than ``most`` bytes of it.

    Tensors of other sizes do not fit into what earlier ones left: without this a network of 135M
    parameters comes to hold twice the memory of its largest micro-batch.

    Returns:
        Whether it was returned; False outside Linux and glibc 2.33.
    """
    heap_facts, trim = _glibc_function("mallinfo2"), _glibc_function("malloc_trim")
    if heap_facts is None or trim is None or not _MEMORY.exists():
        return False
    heap_facts.restype = _HeapFacts
    facts: _HeapFacts = heap_facts()
    # The heaps' own count of free bytes has pages that were returned before, or never used.
    _, resident, shared, *_ = map(int, _MEMORY.read_text().split())
    held = (resident - shared) * mmap.PAGESIZE - facts.uordblks - facts.hblkhd
    return bool(held > most and trim(0))


def _glibc_function(name: str) -> Any:
    """Return a function of the C library; None if it is not glibc, or has no such function."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
