"""How fast this CPU multiplies matrices in bfloat16, measured.

CPUs without instructions for it, as in most laptops, take 10 to 500 times as long as in float32
(PyTorch's issue 146508), and some that have them twice as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial

import torch

_SIZE = 384
"""Rows and columns of the matrices."""
_ROUNDS = 5
"""Rounds of which the fastest counts: a disturbance only adds time."""
_SLOW = 1.15
"""How many times as long as in float32 is told; less may be chance."""


@cache
def bf16_slowdown() -> float:
    """Return how many times as long as in float32 a product of matrices takes in bfloat16; measured
    once in a process, in milliseconds where bfloat16 is fast and in a second where it is not."""
    times: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    for dtype in times:
        torch.ones(_SIZE, _SIZE, dtype=dtype).mm(torch.ones(_SIZE, _SIZE, dtype=dtype))
    for _ in range(_ROUNDS):
        for dtype, seconds in times.items():
            factor = torch.ones(_SIZE, _SIZE, dtype=dtype)
            seconds.append(_seconds(partial(torch.mm, factor, factor)))
    return min(times[torch.bfloat16]) / min(times[torch.float32])


def slow_bf16_warning(precision: str, device: torch.device) -> str | None:
    """Return a warning, without what to do, if a precision makes a run on this device slower than
    float32 would; None if it does not.

    Args:
        precision: ``trainer.precision``.
        device: The device of the networks.
    """
    if not precision.startswith("bf16") or device.type != "cpu" or bf16_slowdown() < _SLOW:
        return None
    return (
        f"trainer.precision is {precision}, but this CPU takes {bf16_slowdown():.1f} times as long "
        "to multiply matrices in bfloat16 as in float32"
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
