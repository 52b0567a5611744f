"""Freed memory stays in the process up to a limit, above which it is given back."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ragen_pl.runtime.allocator import retain_freed_memory, trim_retained_memory

PROGRAM = """
import resource
import torch
from ragen_pl.runtime.allocator import retain_freed_memory, trim_retained_memory

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() // 2**20

assert retain_freed_memory()
before = resident()
tensors = [torch.ones(2**18) for _ in range(200)]  # a mebibyte each
filled = resident() - before
del tensors
freed = resident() - before
kept, trimmed = trim_retained_memory(2**30), trim_retained_memory(2**26)
left = resident() - before
tensors = [torch.ones(2**18 if number % 2 else 2**8) for number in range(400)]
tensors = tensors[::2]  # what is free lies between those that are left
trims = trim_retained_memory(2**26), trim_retained_memory(2**26)
print(filled, freed, kept, trimmed, left, *trims)
"""


def test_freed_memory_is_kept_up_to_a_limit() -> None:
    if not sys.platform.startswith("linux"):  # its allocator is left as it is
        assert not retain_freed_memory()
        assert not trim_retained_memory(0)
        return
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    filled, freed, kept, trimmed, left, first, second = done.stdout.split()
    assert int(filled) >= 190
    assert int(freed) >= 190  # mebibytes that the system sees in use still
    assert (kept, trimmed) == ("False", "True")
    assert int(left) < 40
    assert (first, second) == ("True", "False"), "what was given back is not held any more"


def test_other_systems_and_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())  # of no such functions
    assert not retain_freed_memory()
    assert not trim_retained_memory(0)
    monkeypatch.setattr(ctypes, "CDLL", None)  # not even opened
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not retain_freed_memory()
    assert not trim_retained_memory(0)
