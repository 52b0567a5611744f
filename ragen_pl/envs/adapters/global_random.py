"""``GlobalRandom``, for packages that seed or read Python's and numpy's global generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LOCK = threading.Lock()
"""Held while a global state is exchanged: environments are stepped in threads."""


class GlobalRandom:
    """A global random state of one's own, which others neither see nor change.

    Args:
        entropy: Numbers that decide the state.
    """

    def __init__(self, *entropy: int) -> None:
        self.seed(*entropy)

    def seed(self, *entropy: int) -> None:
        """Begin anew."""
        python = random.Random(f"global {entropy}")
        self._python = python.getstate()
        self._numpy = np.random.RandomState(python.getrandbits(32)).get_state()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make this the global state within the context; what is drawn there moves it on."""
        with _LOCK:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)
