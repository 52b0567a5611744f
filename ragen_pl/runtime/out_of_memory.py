"""Short errors with remedies for out-of-memory failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ragen_pl.errors import ConfigError

_MESSAGES = ("can't allocate memory", "not enough memory", "out of memory")
"""Parts of the messages of PyTorch's allocators on CPUs and on Apple's GPUs, which raise a plain
RuntimeError."""
_MAX_LENGTH = 160
REMEDIES = (
    "optimization.tokens_per_micro_batch",
    "rollout.group_size",
    "rollout.num_groups",
    "rollout.max_context",
)
"""Keys to lower; the first one changes no result."""


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn out-of-memory errors within the context into a ConfigError that names keys to lower.

    Raises:
        ConfigError: when memory runs out, of a GPU or of the machine.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        kind = type(error).__name__
        first_line = (str(error).splitlines() or [""])[0][:_MAX_LENGTH]
        reason = f"{kind}: {first_line}" if first_line else kind
        raise ConfigError(
            f"out of memory ({reason})\n"
            f"  lower {', '.join(REMEDIES[:-1])} or {REMEDIES[-1]}\n"
            "  `python run.py plan` with the same configs and options prints the memory by purpose"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out, of a GPU or of the machine."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _MESSAGES)
