"""``Remembered``, what deterministic simulations led to, where simulating again is slow."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Seen = TypeVar("Seen")


class Remembered(Generic[Seen]):
    """What was seen at each place of a simulation, for all environments of a process.

    A place is a start and the commands since. Simulations take turns.

    Args:
        most: Places to remember; the longest unused are forgotten first.
    """

    def __init__(self, most: int) -> None:
        self._most, self.turn = most, threading.RLock()
        self._seen: OrderedDict[Hashable, Seen] = OrderedDict()

    def get(self, place: Hashable, simulate: Callable[[], Seen]) -> Seen:
        """Return what is seen at a place, after simulating it if it is new."""
        with self.turn:
            if place not in self._seen:
                self._seen[place] = simulate()
                if len(self._seen) > self._most:
                    self._seen.popitem(last=False)
            self._seen.move_to_end(place)
            return self._seen[place]
