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


def seen_still(looks: int = 60) -> float:
    """Look from a thread of its own, as the test's thread waits; return the most that one saw."""
    found = list[float]()
    main = threading.get_ident()

    def watch() -> None:
        stillness = Stillness(main, hold_after=0.1, longest_step=1.0)
        for _ in range(looks):
            time.sleep(0.01)
            found.append(stillness.look())

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    return max(found)


def test_waiting_threads_stand_still(over: threading.Event) -> None:
    with running(lambda: hang(over), "waiting"):
        assert seen_still() > 0.4


def test_a_thread_that_calls_one_function_again_and_again_moves(over: threading.Event) -> None:
    """As a loop over steps of an environment does: each look finds the same lines, and Python gives
    each call the address of the one before, until one is held."""

    def step() -> None:
        time.sleep(0.05)

    def work() -> None:
        while not over.is_set():
            step()

    with running(work, "working"):
        assert seen_still(100) < 0.3


def test_a_thread_of_a_library_is_no_movement(over: threading.Event) -> None:
    """A progress bar's looks every few seconds whether there is something to show."""
    pulses = [threading.Timer(0.03 * n, int) for n in range(1, 20)]
    for pulse in pulses:
        pulse.start()
    with running(lambda: hang(over), "environment"):
        assert seen_still() > 0.4


def test_the_time_in_which_the_process_was_stopped_does_not_count(
    over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(lambda: hang(over), "environment") as thread:
        assert thread.ident is not None
        stillness = Stillness(thread.ident, 1e3, longest_step=2.0)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 3600.0)
        assert stillness.look() == 2.0


def hang(over: threading.Event) -> None:
    over.wait()


def test_the_place_is_in_the_users_code_and_not_in_the_library(over: threading.Event) -> None:
    with running(lambda: hang(over), "environment") as thread:
        assert thread.ident is not None
        stillness = Stillness(thread.ident, 1.0, 1.0)
        line = hang.__code__.co_firstlineno + 1
        assert stillness.place() == f"hang (test_standstill.py:{line})"
        stacks = stillness.stacks()
    assert stacks.startswith("environment:\n")
    assert "in wait" in stacks
    assert "over.wait()" in stacks
    assert "stillness.stacks()" not in stacks, "the looking thread is left out"
