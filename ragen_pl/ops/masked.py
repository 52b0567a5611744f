"""Reduce tensors over a mask, over all ranks where a reducer is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""


def _local(tensor: Tensor) -> Tensor:
    return tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum ``values`` where ``mask``; what stands elsewhere, NaN included, does not matter."""
    return torch.where(mask, values, torch.zeros_like(values)).sum()


def masked_mean(values: Tensor, mask: Tensor, reduce: Reduce = _local) -> Tensor:
    """Average ``values`` where ``mask``; 0 when nothing is marked."""
    count = reduce(mask.sum().to(values.dtype))
    return reduce(masked_sum(values, mask)) / count.clamp(min=1)


def whiten(values: Tensor, mask: Tensor, reduce: Reduce = _local, eps: float = 1e-8) -> Tensor:
    """Shift and scale to mean 0 and variance 1 (Bessel-corrected) over the marked entries.

    Returns zeros off the mask. One marked entry, or equal entries, give zeros.
    """
    count = reduce(mask.sum().to(values.dtype))
    mean = reduce(masked_sum(values, mask)) / count.clamp(min=1)
    centred = torch.where(mask, values - mean, torch.zeros_like(values))
    variance = reduce(centred.square().sum()) / (count - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + eps)
