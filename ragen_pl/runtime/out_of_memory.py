"""Short words for memory that ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ragen_pl.errors import ConfigError

_SIGNS = ("can't allocate memory", "not enough memory", "out of memory")
"""Of PyTorch's allocators on CPUs and on Apple's GPUs, which raise a plain RuntimeError."""
_LONGEST = 160
REMEDIES = (
    "optimization.tokens_per_micro_batch",
    "rollout.group_size",
    "rollout.num_groups",
    "rollout.max_context",
)
"""Keys that memory grows with, the one that changes no result first."""


@contextmanager
def lack_of_memory() -> Iterator[None]:
    """Say what to lower where memory runs out within."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        first = (str(error).splitlines() or [""])[0][:_LONGEST]
        said = f"{type(error).__name__}: {first}" if first else type(error).__name__
        raise ConfigError(
            f"memory ran out ({said})\n  lower {', '.join(REMEDIES[:-1])} or {REMEDIES[-1]}\n"
            "  `python run.py plan` with the same configs and options says what needs how much"
        ) from error


def is_lack_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, of a GPU or of the machine."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)
