"""Reduce tensors over a mask, over all ranks where a reducer is given."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""


def local(tensor: Tensor) -> Tensor:
    """Reduce over this rank alone."""
    return tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum ``values`` where ``mask``; what stands elsewhere, NaN included, does not matter."""
    return torch.where(mask, values, torch.zeros_like(values)).sum()


def masked_mean(values: Tensor, mask: Tensor, reduce: Reduce = local) -> Tensor:
    """Average ``values`` where ``mask``; 0 when nothing is marked."""
    count = reduce(mask.sum().to(values.dtype))
    return reduce(masked_sum(values, mask)) / count.clamp(min=1)


def masked_variance(values: Tensor, mask: Tensor, reduce: Reduce = local) -> Tensor:
    """Return the Bessel-corrected variance where ``mask``; 0 when fewer than two are marked."""
    count = reduce(mask.sum().to(values.dtype))
    centerd = values - masked_mean(values, mask, reduce)
    return reduce(masked_sum(centerd.square(), mask)) / (count - 1).clamp(min=1)


def whiten(values: Tensor, mask: Tensor, reduce: Reduce = local, eps: float = 1e-8) -> Tensor:
    """Shift and scale to mean 0 and variance 1 (Bessel-corrected) over the marked entries.

    Returns zeros off the mask. One marked entry, or equal entries, give zeros.
    """
    centerd = values - masked_mean(values, mask, reduce)
    scaled = centerd * torch.rsqrt(masked_variance(values, mask, reduce) + eps)
    return torch.where(mask, scaled, torch.zeros_like(values))


# --- measures of an update ------------------------------------------------------------------------


_ROUNDING = 1e-12
"""Share of the returns' mean square up to which their variance is what float32 leaves of it."""


def outside_clip(log_ratio: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Mark the entries whose ratio lies outside [1 − clip_low, 1 + clip_high]; bool, same shape."""
    ratio = torch.exp(log_ratio)
    return (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = local
) -> Tensor:
    """Return 1 − Var(R − V) / Var(R): 1 is a perfect critic, 0 a constant, below 0 a harmful one.

    0 when the returns do not vary, but for rounding. Over all ranks where a reducer is given.
    """
    size = masked_mean(returns.square(), mask, reduce)
    target = masked_variance(returns, mask, reduce)
    residual = masked_variance(returns - values, mask, reduce)
    if float(target) <= _ROUNDING * float(size):
        return torch.zeros(())
    return 1.0 - residual / target
