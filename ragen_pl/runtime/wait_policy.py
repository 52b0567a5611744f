"""How PyTorch's threads wait for one another; imported before PyTorch, and imports nothing."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_COUNT = 5000
"""About a quarter of a millisecond, which covers the gaps between most operations.

On a quiet machine it is as fast as any longer spin; without one (``OMP_WAIT_POLICY=PASSIVE``)
threads sleep and are woken between two small operations, and a run takes 1.3 to 1.7 times as long.
GNU OpenMP's default, 300,000, is some 14 ms: beside other programs waiting threads then keep the
very cores that the others wait for, and an iteration takes up to 30 times as long
(benchmarks/LOG.md, entry 18).
"""

_OWN_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Let waiting threads spin briefly, then sleep; the user's own setting wins.

    GNU OpenMP reads the setting once, when PyTorch is loaded: call this before, and child processes
    inherit it.

    Returns:
        Whether it was set here.
    """
    if any(environ.get(name) for name in _OWN_SETTINGS):
        return False
    environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return True


def describe_waiting(environ: MutableMapping[str, str] = os.environ) -> str:
    """Tell in a few words how threads wait, and by whose setting."""
    given = [f"{name}={environ[name]}" for name in _OWN_SETTINGS if environ.get(name)]
    return f"how they wait: {' '.join(given) or 'as OpenMP has it'}"
