"""Whether a process stands still, and where."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

from ragen_pl.runtime.user_faults import OWN_CODE, is_below, is_users


class Stillness:
    """Regular looks at the stacks of the threads that run the user's code or this package's.

    A thread has moved if it is at another instruction, or in another call of the same function.
    What no look can see is a movement within one call, such as a loop of calls into compiled code.
    Threads of libraries alone, which wake up now and then to see that there is nothing to do, are
    left out.

    Args:
        main: Identifier of the thread whose place is told.
        hold_after: Seconds without a movement after which the innermost calls are held until the
            next look: Python gives the address of a call that has ended to the next one. A held
            call keeps its tensors, which is why they are not held before.
        longest_step: Seconds that the time between two looks may add, for a process that was
            stopped.
    """

    def __init__(self, main: int, hold_after: float, longest_step: float) -> None:
        self._main, self._hold_after, self._longest_step = main, hold_after, longest_step
        self._held: list[FrameType] = []
        self._still, self._last = 0.0, time.monotonic()
        self._seen = self._positions()

    def look(self) -> float:
        """Return for how many seconds no thread has been seen to move."""
        positions, now = self._positions(), time.monotonic()
        self._still += min(now - self._last, self._longest_step)
        if positions != self._seen:
            self._still, self._held = 0.0, []
        elif self._still >= self._hold_after and not self._held:
            self._held = list(self._innermost().values())
        self._seen, self._last = positions, now
        return self._still

    def place(self) -> str:
        """Return function, file and line where the main thread is, in code that is the user's or
        this package's."""
        frames = list(_outwards(sys._current_frames().get(self._main)))
        if not frames:
            return "a thread that has ended"
        frame = next((each for each in frames if _is_told(each.f_code.co_filename)), frames[0])
        code = frame.f_code
        return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"

    def stacks(self) -> str:
        """Return the stacks of all threads but this one, the main one first."""
        here = threading.get_ident()
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {k: frame for k, frame in sys._current_frames().items() if k != here}
        return "\n".join(
            f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(stacks[ident]))}"
            for ident in sorted(stacks, key=lambda ident: ident != self._main)
        )

    def _positions(self) -> dict[int, tuple[tuple[int, int], ...]]:
        return {
            ident: tuple((id(frame), frame.f_lasti) for frame in _outwards(innermost))
            for ident, innermost in self._innermost().items()
        }

    def _innermost(self) -> dict[int, FrameType]:
        here = threading.get_ident()
        return {
            ident: frame
            for ident, frame in sys._current_frames().items()
            if ident == self._main or (ident != here and _runs_told_code(frame))
        }


def _runs_told_code(innermost: FrameType) -> bool:
    return any(_is_told(frame.f_code.co_filename) for frame in _outwards(innermost))


@cache
def _is_told(name: str) -> bool:
    """Tell whether a file, by its name in a code object, is the user's or this package's."""
    file = Path(name)
    return not name.startswith("<") and (is_users(file) or is_below(file, OWN_CODE))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
