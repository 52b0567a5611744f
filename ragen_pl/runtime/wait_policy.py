"""How threads wait for one another; without imports, so that it runs before PyTorch."""

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
_TOKENIZERS = "TOKENIZERS_PARALLELISM"
"""Whether tokenizers encode the texts of a batch in threads of their own. These spin between
batches: a few short texts at a time, as in a dialogue, cost twice the processor time
(benchmarks/LOG.md, entry 30)."""


def limit_spinning(environ: MutableMapping[str, str] = os.environ) -> bool:
    """Let PyTorch's waiting threads spin briefly, then sleep, and encode texts without threads; a
    setting of the user's takes precedence.

    GNU OpenMP reads the setting once, when PyTorch is loaded: call this before. Child processes
    inherit it.

    Returns:
        Whether the setting of PyTorch's threads was changed.
    """
    if not environ.get(_TOKENIZERS):
        environ[_TOKENIZERS] = "false"
    if any(environ.get(name) for name in _VARIABLES):
        return False
    environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    return True


def describe_waiting(environ: MutableMapping[str, str] = os.environ) -> str:
    """Return a short description of how threads wait."""
    settings = [f"{name}={environ[name]}" for name in _VARIABLES if environ.get(name)]
    return f"wait policy: {' '.join(settings) or 'OpenMP default'}"
