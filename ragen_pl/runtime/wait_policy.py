"""How PyTorch's threads wait for one another; without imports, so that it runs before PyTorch."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_COUNT = 5000
"""Spins of a waiting thread: about a quarter of a millisecond, which covers the gaps between most
operations.

On an idle machine this is as fast as any longer spin. Without spinning
(``OMP_WAIT_POLICY=PASSIVE``) threads sleep and are woken between two small operations, and a run
takes 1.3 to 1.7 times as long. GNU OpenMP's default, 300,000, is about 14 ms: on a machine that
also runs other programs, spinning threads then occupy the cores that those need, and an iteration
takes up to 30 times as long (benchmarks/LOG.md, entry 18).
"""

_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Let waiting threads spin briefly, then sleep; a setting of the user's takes precedence.

    GNU OpenMP reads the setting once, when PyTorch is loaded: call this before. Child processes
    inherit it.

    Returns:
        Whether the setting was changed.
    """
    if any(environ.get(name) for name in _VARIABLES):
        return False
    environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return True


def describe_waiting(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return a short description of how threads wait."""
    settings = [f"{name}={environ[name]}" for name in _VARIABLES if environ.get(name)]
    return f"wait policy: {' '.join(settings) or 'OpenMP default'}"
