"""Run code as several ranks in one process: threads that wait for each other when they gather."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, local
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

Result = TypeVar("Result")
_PATIENCE = 20.0
"""Seconds after which a rank that waits alone is an error: the others gather less often."""


def on_ranks(
    count: int,
    work: Callable[[int], Result],
    monkeypatch: pytest.MonkeyPatch,
    *modules: ModuleType,
) -> list[Result]:
    """Return what each rank's ``work`` returns.

    Args:
        modules: Those that take part with their ``gather_objects``, ``all_reduce_sum``, ``rank``,
            ``world_size``.
    """
    me, barrier = local(), Barrier(count, timeout=_PATIENCE)
    slots: list[Any] = [None] * count

    def gather(value: Any) -> list[Any]:
        slots[me.rank] = value
        barrier.wait()
        gathered = list(slots)
        barrier.wait()
        return gathered

    def reduce(tensor: Tensor) -> Tensor:
        # A copy: a rank may change its own in place while another still sums.
        return torch.stack(gather(tensor.detach().clone())).sum(0)

    def start(rank: int) -> Result:
        me.rank = rank
        return work(rank)

    with monkeypatch.context() as patch, ThreadPoolExecutor(count) as pool:
        for module in modules:
            patch.setattr(module, "all_reduce_sum", reduce, raising=False)
            patch.setattr(module, "_active", lambda: True, raising=False)
            patch.setattr(module, "gather_objects", gather, raising=False)
            patch.setattr(module, "rank", lambda: me.rank, raising=False)
            patch.setattr(module, "world_size", lambda: count, raising=False)
        return list(pool.map(start, range(count)))
