"""Shape buckets: few sizes to pad to, so that shapes recur.

oneDNN, which computes bfloat16 products on CPUs, compiles a kernel for every new shape. That takes
milliseconds, while a small model's product takes one. A kernel takes up to a mebibyte, and the last
thousand are kept. Trajectories have any length, so almost every batch would have a new shape.
"""

from __future__ import annotations

import torch


def round_up(size: int, per_octave: int = 8) -> int:
    """Round up to the next bucket size.

    Args:
        size: The size, at least 1.
        per_octave: Number of bucket sizes from one power of two to the next, itself a power of two;
            8 add at most an eighth to a size.
    """
    step = max(1, (1 << (size - 1).bit_length()) // (2 * per_octave))
    return -(-size // step) * step


def round_down(size: int) -> int:
    """Round down to the largest bucket size that is not above ``size``, with 8 per octave."""
    step = max(1, (1 << size.bit_length()) // 16)
    return size // step * step


def bucket_size(size: int, device: torch.device) -> int:
    """Return the size to pad to before a matrix product on a device: a bucket size if kernels are
    compiled per shape (under autocast on a CPU), else ``size`` itself."""
    compiles_kernels = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return round_up(size) if compiles_kernels else size
