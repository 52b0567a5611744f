"""Masked reductions, and the measures of an update built on them.

Sums, means, variances and whitening over the marked entries of a tensor; the share of ratios
outside the clip range; and the critic's explained variance. With a reducer they are taken over all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]
"""The sum of a tensor over all ranks."""

_EPS = 1e-8
"""ε, which keeps the division by the standard deviation finite."""
_ROUNDING = 1e-12
"""Share of numbers' mean square up to which their variance counts as float32 rounding."""


def local(tensor: Tensor) -> Tensor:
    """Return the tensor itself: the reducer of a single rank."""
    return tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the marked entries of ``values``; entries off the mask are ignored, even NaN."""
    return torch.where(mask, values, torch.zeros_like(values)).sum()


def masked_mean(values: Tensor, mask: Tensor, reduce: Reduce = local) -> Tensor:
    """Average the marked entries of ``values``; 0 when nothing is marked."""
    _, (mean,) = _means([values], mask, reduce)
    return mean


def _means(
    columns: Sequence[Tensor], mask: Tensor, reduce: Reduce
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the number of marked entries, and the mean of several tensors over them, in a single
    reduction: what is sent is small, and each reduction waits for the slowest rank."""
    count = mask.sum().to(columns[0].dtype)
    sums = reduce(torch.stack([count, *(masked_sum(each, mask) for each in columns)]))
    means = sums[1:] / sums[0].clamp(min=1)
    return sums[0], means.unbind()


def _variances(
    centered: Sequence[Tensor], count: Tensor, mask: Tensor, reduce: Reduce
) -> tuple[Tensor, ...]:
    """Return the Bessel-corrected variances of tensors less their means, in a single reduction; 0
    for fewer than two entries.

    The sums of squares need the means first: together with them, they would lose the digits of a
    small variance to a large mean.
    """
    squares = reduce(torch.stack([masked_sum(each.square(), mask) for each in centered]))
    return (squares / (count - 1).clamp(min=1)).unbind()


def whiten(values: Tensor, mask: Tensor, reduce: Reduce = local) -> Tensor:
    """Shift and scale to mean 0 and variance 1 (Bessel-corrected) over the marked entries.

    Returns zeros off the mask. One marked entry, or entries that differ by no more than rounding,
    give zeros.
    """
    count, (mean, mean_square) = _means([values, values.square()], mask, reduce)
    centered = values - mean
    (variance,) = _variances([centered], count, mask, reduce)
    # Else the rounding of the mean, the same for all entries, would be scaled up.
    varies = variance > _ROUNDING * mean_square
    return torch.where(mask & varies, centered * torch.rsqrt(variance + _EPS), 0.0)


# --- measures of an update ------------------------------------------------------------------------


def outside_clip(log_ratio: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Mark the entries whose ratio lies outside [1 − clip_low, 1 + clip_high]; bool, same shape.

    Their mean is the clip fraction.
    """
    ratio = torch.exp(log_ratio)
    return (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor, reduce: Reduce = local
) -> Tensor:
    """Return 1 − Var(R − V) / Var(R): 1 is a perfect critic, 0 a constant, below 0 a harmful one.

    0 when the returns vary by no more than rounding. Over all ranks when a reducer is given.
    """
    residuals = returns - values
    columns = [returns, residuals, returns.square()]
    count, (mean, mean_residual, mean_square) = _means(columns, mask, reduce)
    centered = [returns - mean, residuals - mean_residual]
    target, residual = _variances(centered, count, mask, reduce)
    if float(target) <= _ROUNDING * float(mean_square):
        return torch.zeros(())
    return 1.0 - residual / target
