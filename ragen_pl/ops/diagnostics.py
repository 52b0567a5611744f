"""Measure an update: pure functions of (B, T) tensors and a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from ragen_pl.ops.masked import Reduce, local, masked_mean, masked_variance

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
