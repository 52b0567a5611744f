"""A framework's training loop, run step by step, so that two can alternate in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Steps:
    """A training loop in a thread of its own that runs only during ``step``.

    The loop must call ``boundary`` at the end of every step.

    Args:
        loop: Function that trains to the end.
    """

    def __init__(self, loop: Callable[[], object]) -> None:
        self._go, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._loop = loop
        self.rollout_seconds: list[float] = []
        """Seconds of each step's rollout, which the loop adds."""
        self.finished = False
        """Whether the loop has come to its end; there is no further step then."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._loop()
        except BaseException as error:  # any error is raised again in the waiting thread
            self._error = error
        self.finished = True
        self._ended.release()

    def boundary(self) -> None:
        """End a step and wait for the next one."""
        self._ended.release()
        self._go.acquire()

    def step(self) -> None:
        """Run one step; errors of the loop are raised here."""
        assert not self.finished, "the loop has ended"
        self._go.release()
        self._ended.acquire()
        if self._error is not None:
            raise self._error
