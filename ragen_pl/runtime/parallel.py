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
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Lock, Semaphore
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
    most = Semaphore(count)  # there may be more threads

    def run(computation: Callable[[], Result]) -> Result:
        with (
            most,
            torch.set_grad_enabled(with_gradients),
            torch.autocast("cpu", dtype, is_autocast, keeps_casts),
        ):
            return computation()

    with _POOL.lock:
        pool = _POOL.of_at_least(count)
        futures = [pool.submit(run, computation) for computation in computations]
    wait(futures)
    return [future.result() for future in futures]


class _Pool:
    """Threads whose operations are not divided among threads again; one pool for every number of
    them, because each thread keeps freed memory of its own."""

    def __init__(self) -> None:
        self.lock = Lock()
        """Held while computations are handed over, so that a pool is not ended before that."""
        self._threads: ThreadPoolExecutor | None = None
        self._count = 0

    def of_at_least(self, count: int) -> ThreadPoolExecutor:
        """Return the threads, more of them if they are fewer than ``count``."""
        if self._threads is None or self._count < count:
            if self._threads is not None:
                self._threads.shutdown(wait=False)  # they end when what they were given has ended
            self._count = max(count, torch.get_num_threads())
            self._threads = None  # should the start fail
            self._threads = _started(self._count)
        return self._threads


def _started(count: int) -> ThreadPoolExecutor:
    barrier = Barrier(count)

    def compute_alone() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # at its first use, a thread takes over the number set last
        with suppress(BrokenBarrierError):
            barrier.wait()

    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, "part", compute_alone)
    try:
        wait([pool.submit(int) for _ in range(count)])
    except RuntimeError:  # the system has no thread left, for which the others would wait
        barrier.abort()
        pool.shutdown()
        raise
    finally:
        torch.set_num_threads(threads)  # for threads that are started later
    return pool


_POOL = _Pool()


def _forget_threads() -> None:
    """A forked process has no threads but the one that forked."""
    global _POOL
    _POOL = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
