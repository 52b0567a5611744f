"""Gradient norms per loss term, and quantile buckets of groups to compare them over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ragen_pl.ops.masked import Reduce


def quantile_buckets(scores: Tensor, num_buckets: int) -> Tensor:
    """Return (G,) the quantile bucket of each group, 0 for the lowest scores.

    Equal scores share a bucket, so with many ties the buckets are uneven and some may be empty. The
    result does not depend on the order of the groups.

    Args:
        scores: (G,), all finite.
        num_buckets: Number of buckets, at least 1.
    """
    ordered = scores.sort().values
    smaller = torch.searchsorted(ordered, scores.contiguous(), right=False)
    return smaller * num_buckets // max(1, len(scores))


def gradient_norms(
    names: Sequence[str],
    parts: Iterable[Mapping[str, Tensor]],
    parameters: Sequence[Tensor],
    reduce: Reduce,
) -> dict[str, float]:
    """Sum each loss term's gradient over micro-batches and ranks; return the norm of each sum.

    The parameters' own ``grad`` is neither read nor written. Every rank must call it with the same
    names, including a rank without micro-batches.

    Args:
        names: Names of the loss terms.
        parts: Mappings of name to scalar loss, one per micro-batch; they are consumed one by one,
            so that only one graph is alive at a time.
        parameters: The parameters to differentiate with respect to.
        reduce: Function that sums a tensor over all ranks.
    """
    # Gathered weights may be 16-bit; sums over many micro-batches must not be.
    wide = [torch.promote_types(p.dtype, torch.float32) for p in parameters]
    sums = {
        name: [torch.zeros_like(p, dtype=t) for p, t in zip(parameters, wide, strict=True)]
        for name in names
    }
    for part in parts:
        for name in names:
            gradients = torch.autograd.grad(
                part[name], parameters, retain_graph=True, allow_unused=True
            )
            for total, gradient in zip(sums[name], gradients, strict=True):
                if gradient is not None:
                    total += gradient
    return {
        name: float(
            torch.linalg.vector_norm(
                torch.stack([torch.linalg.vector_norm(reduce(g)) for g in gradients])
            )
        )
        for name, gradients in sums.items()
    }
