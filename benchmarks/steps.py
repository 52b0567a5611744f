"""Run loops that belong to frameworks step by step, so that they can take turns in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Steps:
    """Hold a training loop in a thread of its own, which runs only while a step is asked for.

    The loop must call ``boundary`` at the end of every step.

    Args:
        loop: Trains to its end.
    """

    def __init__(self, loop: Callable[[], object]) -> None:
        self._go, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._loop = loop
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._loop()
        except BaseException as error:  # whatever it is, the thread that waits must hear of it
            self._error = error
        self._ended.release()

    def boundary(self) -> None:
        """End a step and wait for the next to be asked for."""
        self._ended.release()
        self._go.acquire()

    def step(self) -> None:
        """Run one step, and raise what the loop raised in it."""
        self._go.release()
        self._ended.acquire()
        if self._error is not None:
            raise self._error
