"""Whether a process stands still, and where."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from ragen_pl.runtime.user_faults import OWN_CODE, is_below, is_users


class Stillness:
    """Regular looks at the stacks of all threads of this process but the looking one.

    Between two looks a thread has moved if it is at another instruction, or in another call of the
    same function. Only numbers are kept of a stack: a frame that is held keeps its tensors.

    Args:
        main: Identifier of the thread whose place is told.
    """

    def __init__(self, main: int) -> None:
        self._main = main
        self._seen, self._since = self._positions(), time.monotonic()

    def look(self) -> float:
        """Return for how many seconds no thread has been seen to move."""
        positions, now = self._positions(), time.monotonic()
        if positions != self._seen:
            self._seen, self._since = positions, now
        return now - self._since

    def place(self) -> str:
        """Return function, file and line where the main thread is, in code that is the user's or
        this package's."""
        frames = list(_outwards(sys._current_frames().get(self._main)))
        if not frames:
            return "a thread that has ended"
        told = (frame for frame in frames if _is_told(Path(frame.f_code.co_filename)))
        frame = next(told, frames[0])
        code = frame.f_code
        return f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"

    def stacks(self) -> str:
        """Return the stacks of all threads but this one, the main one first."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = self._stacks()
        return "\n".join(
            f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(stacks[ident]))}"
            for ident in sorted(stacks, key=lambda ident: ident != self._main)
        )

    def _positions(self) -> dict[int, tuple[tuple[int, int], ...]]:
        return {
            ident: tuple((id(frame), frame.f_lasti) for frame in _outwards(innermost))
            for ident, innermost in self._stacks().items()
        }

    def _stacks(self) -> dict[int, FrameType]:
        here = threading.get_ident()
        return {k: frame for k, frame in sys._current_frames().items() if k != here}


def _is_told(file: Path) -> bool:
    return is_users(file) or is_below(file, OWN_CODE)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
