"""A warning of a call into user code that takes long: which it is, and where it stands.

Nothing is interrupted: an exception in the middle of foreign code may leave it broken, or be caught
by it. Whoever waits can end the program.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ragen_pl.runtime.user_faults import is_users

_LOG = logging.getLogger(__name__)
LONG_S = 10.0
"""Seconds after which a call is told the first time; then after twice as many, and so on."""

_WATCHED = set[int]()
"""The threads that are watched."""


@contextmanager
def telling_of_long_calls(
    what: str, callers: tuple[Path, ...], long_s: float | None = None
) -> Iterator[None]:
    """Log a warning of every call from this thread that takes long.

    Within another such block nothing is told twice.

    Args:
        what: What is examined, for the message.
        callers: Files and folders of the code that calls; whatever that code calls is watched.
        long_s: Seconds after which a call is told; None for ``LONG_S``.
    """
    here = threading.get_ident()
    if here in _WATCHED:
        yield
        return
    _WATCHED.add(here)
    is_over = threading.Event()
    watch = _Watch(what, here, callers, LONG_S if long_s is None else long_s)
    thread = threading.Thread(target=watch.run, args=(is_over,), name="patience", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        _WATCHED.discard(here)


class _Watch:
    """Regular looks at the stack of a thread."""

    def __init__(self, what: str, thread: int, callers: tuple[Path, ...], long_s: float) -> None:
        self._what, self._thread, self._callers = what, thread, tuple(map(str, callers))
        self._long_s = long_s
        self._call: FrameType | None = None
        """The call that goes on; held, so that no later call can be taken for it."""

    def run(self, is_over: threading.Event) -> None:
        """Look until it is over."""
        began, told_at = time.monotonic(), self._long_s
        while not is_over.wait(self._long_s / 8):
            frames = self._frames()
            call = frames[-1] if frames else None
            if call is not self._call:
                self._call, began, told_at = call, time.monotonic(), self._long_s
            elif call is not None and time.monotonic() - began >= told_at:
                _LOG.warning("%s: %s", self._what, _told(frames, time.monotonic() - began))
                told_at *= 2
        self._call = None

    def _frames(self) -> list[FrameType]:
        """Return the frames of the call that the callers have made, the innermost first."""
        frames = list[FrameType]()
        frame = sys._current_frames().get(self._thread)
        while frame is not None and not frame.f_code.co_filename.startswith(self._callers):
            frames.append(frame)
            frame = frame.f_back
        return frames if frame is not None else []


def _told(frames: list[FrameType], seconds: float) -> str:
    theirs = (each for each in frames if is_users(Path(each.f_code.co_filename)))
    inner = next(theirs, frames[0])
    name, line = Path(inner.f_code.co_filename).name, inner.f_lineno
    return (
        f"{frames[-1].f_code.co_name} has taken {seconds:.0f} s so far, and is in "
        f"{inner.f_code.co_name} ({name}:{line}); it is waited for: give what may hang a time "
        "limit of its own, or end this with Ctrl-C"
    )
