"""A process stands still if no thread of it moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ragen_pl.runtime.standstill import Stillness


@contextmanager
def running(work: Callable[[], object], name: str) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    time.sleep(0.05)
    yield thread


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def seen_still(looks: int = 30) -> float:
    """Look from a thread of its own, as the test's thread waits; return what the last look saw."""
    found = list[float]()
    main = threading.get_ident()

    def watch() -> None:
        stillness = Stillness(main)
        for _ in range(looks):
            time.sleep(0.01)
            found.append(stillness.look())

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    return found[-1]


def test_waiting_threads_stand_still(over: threading.Event) -> None:
    with running(over.wait, "waiting"):
        assert seen_still() > 0.2


def test_a_thread_that_calls_one_function_again_and_again_moves(over: threading.Event) -> None:
    """As a loop over micro-batches does: every stack is at the same lines."""

    def step() -> None:
        time.sleep(0.002)

    def work() -> None:
        while not over.is_set():
            step()

    with running(work, "working"):
        assert seen_still() < 0.1


def hang(over: threading.Event) -> None:
    over.wait()


def test_the_place_is_in_the_users_code_and_not_in_the_library(over: threading.Event) -> None:
    with running(lambda: hang(over), "environment") as thread:
        assert thread.ident is not None
        stillness = Stillness(thread.ident)
        line = hang.__code__.co_firstlineno + 1
        assert stillness.place() == f"hang (test_standstill.py:{line})"
        stacks = stillness.stacks()
    assert stacks.startswith("environment:\n")
    assert "in wait" in stacks
    assert "over.wait()" in stacks
    assert "stillness.stacks()" not in stacks, "the looking thread is left out"
