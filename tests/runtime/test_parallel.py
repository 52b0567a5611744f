"""Computations in threads of their own: what they inherit, what they leave alone."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from ragen_pl.runtime import parallel
from ragen_pl.runtime.parallel import in_threads
from ragen_pl.runtime.threads import torch_threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


def test_results_keep_their_order_and_parts_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def part(number: int, delay: float) -> int:
        meeting.wait()
        time.sleep(delay)
        return number

    parts = [partial(part, number, delay) for number, delay in enumerate((0.02, 0.01, 0.0))]
    assert in_threads(parts) == [0, 1, 2]


def test_a_part_computes_with_one_thread_and_its_caller_with_its_own() -> None:
    def threads() -> int:
        torch.randn(300, 300) @ torch.randn(300, 300)
        return torch.get_num_threads()

    torch.set_num_threads(3)
    assert in_threads([threads] * 3) == [1, 1, 1]
    assert threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(threads()))
    thread.start()
    thread.join()
    assert later == [3], "threads that start later compute as before"


@pytest.mark.parametrize("is_enabled", [False, True])
def test_gradients_and_autocast_are_those_of_the_caller(is_enabled: bool) -> None:
    def seen() -> tuple[bool, bool, bool, torch.dtype]:
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
        return torch.is_grad_enabled(), *autocast, product.dtype

    dtype = torch.bfloat16 if is_enabled else torch.float32
    for keeps_casts in (True, False):
        autocast = torch.autocast("cpu", torch.bfloat16, is_enabled, keeps_casts)
        with torch.set_grad_enabled(is_enabled), autocast:
            found = in_threads([seen, seen])
        assert found == [(is_enabled, is_enabled, keeps_casts, dtype)] * 2


def test_an_error_is_raised_when_every_part_has_ended() -> None:
    ended: list[str] = []

    def fails() -> None:
        raise MemoryError("no memory for a part")

    def lasts() -> None:
        time.sleep(0.05)
        ended.append("other")

    with pytest.raises(MemoryError, match="no memory for a part"):
        in_threads([fails, lasts])
    assert ended == ["other"]


def test_one_thread_is_the_callers_own() -> None:
    own = threading.get_ident()
    assert in_threads([threading.get_ident]) == [own]
    assert in_threads([threading.get_ident] * 3, threads=1) == [own] * 3
    assert in_threads([], threads=2) == []


def test_there_may_be_more_computations_than_threads() -> None:
    running: list[int] = []
    most: list[int] = []

    def part(number: int) -> int:
        running.append(number)
        most.append(len(running))
        time.sleep(0.005)
        running.remove(number)
        return number

    assert in_threads([partial(part, number) for number in range(8)], threads=2) == [*range(8)]
    assert max(most) == 2


def test_fewer_computations_use_the_same_threads() -> None:
    """A pool for each number would leave as many threads as all numbers have together."""
    with torch_threads(4):
        in_threads([lambda: None] * 4)
        before = threading.active_count()
        for number in (2, 3, 4):
            in_threads([lambda: None] * number)
    assert threading.active_count() == before


def test_more_computations_than_threads_so_far_get_more() -> None:
    in_threads([lambda: None] * 2)
    count = 3 + parallel._POOL._count
    meeting = threading.Barrier(count, timeout=10)
    assert len(in_threads([meeting.wait] * count)) == count


def test_threads_that_cannot_be_started_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_POOL", parallel._Pool())
    start, started = threading.Thread.start, list[threading.Thread]()

    def start_two(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            in_threads([lambda: None] * 3)
    assert not any(thread.is_alive() for thread in started)
    assert torch.get_num_threads() == 2, "threads that start later compute as before"
    assert in_threads([lambda: 1, lambda: 2]) == [1, 2]


def _computes_in_threads() -> None:
    assert in_threads([lambda: 3, lambda: 4]) == [3, 4]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_starts_its_own_threads() -> None:
    """Its parent's are not there: a computation given to them would never end."""
    assert in_threads([lambda: 1, lambda: 2]) == [1, 2]
    child = multiprocessing.get_context("fork").Process(target=_computes_in_threads)
    child.start()
    child.join(20)
    is_waiting = child.is_alive()
    child.kill()
    child.join()
    assert not is_waiting, "the forked process waits for threads that it does not have"
    assert child.exitcode == 0
