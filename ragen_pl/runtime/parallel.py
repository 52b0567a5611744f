"""Independent computations on the CPU, each in a thread of its own.

PyTorch divides each operation among its threads, which wait for one another after it. The
operations of small models are too short for that: two threads take three quarters of one's time.
Where a computation falls into independent parts, each part is better left to one thread, which
waits for the others once, at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Result = TypeVar("Result")


def in_threads(
    computations: Sequence[Callable[[], Result]], threads: int | None = None
) -> list[Result]:
    """Run computations at the same time, and return their results in order.

    Each has the caller's autocast and whether it computes gradients, and one thread for each of its
    operations. With a single thread the caller itself runs them, in order.

    Args:
        computations: The computations, the longest first if there are more than threads.
        threads: Most threads to use; None for one each.

    Raises:
        Exception: the first one's that failed, when all have ended.
    """
    count = min(threads or len(computations), len(computations))
    if count < 2:
        return [computation() for computation in computations]
    with_gradients = torch.is_grad_enabled()
    is_autocast, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    keeps_casts = torch.is_autocast_cache_enabled()

    def run(computation: Callable[[], Result]) -> Result:
        with (
            torch.set_grad_enabled(with_gradients),
            torch.autocast("cpu", dtype, is_autocast, keeps_casts),
        ):
            return computation()

    futures = [_pool(count).submit(run, computation) for computation in computations]
    wait(futures)
    return [future.result() for future in futures]


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    """Start threads whose operations are not divided among threads again."""
    started = Barrier(count)

    def compute_alone() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # at its first use, a thread takes over the number set last
        started.wait()

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "part", compute_alone)
    wait([pool.submit(int) for _ in range(count)])
    torch.set_num_threads(threads)  # for threads that are started later
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has no threads but the one that forked
    os.register_at_fork(after_in_child=_pool.cache_clear)
