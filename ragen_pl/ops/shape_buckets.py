"""Choose sizes that come again.

What computes bfloat16 products on CPUs, oneDNN, writes machine code for every shape it has not met:
milliseconds, where a small model's product takes one, and up to a mebibyte, of which it keeps the
last thousand. Trajectories end anywhere, so that almost every batch would be of a new shape.
"""

from __future__ import annotations

import torch


def round_up(size: int, to_the_octave: int = 8) -> int:
    """Return the next size of so many, a power of two, to the octave: with eight it is an eighth
    more at most."""
    step = max(1, (1 << (size - 1).bit_length()) // (2 * to_the_octave))
    return -(-size // step) * step


def round_down(size: int) -> int:
    """Return the last size of eight to the octave that is not above another."""
    step = max(1, (1 << size.bit_length()) // 16)
    return size // step * step


def bucket_size(size: int, device: torch.device) -> int:
    """Return the size to pad to before products are computed on a device, in its context: one that
    recurs where code is written for it."""
    writes_code = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return round_up(size) if writes_code else size
