"""Reduce a loss per token to a number: three ways to weigh tokens against trajectories.

Each is a sum over the micro-batch divided by a count over the *whole* optimizer batch, on all ranks
and over all its micro-batches, so neither changes the update. A mean per micro-batch, averaged
afterwards, would weigh tokens by the company they happened to be in.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ragen_pl.ops.masked import masked_sum

Aggregation = Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum"]
"""``token_mean``: every token weighs the same (DAPO, 2503.14476 §3.3).
``sequence_mean_token_mean``: every trajectory does, whatever its length (GRPO, 2402.03300 eq. 3).
``sequence_mean_token_sum``: tokens weigh the same, but trajectories are counted (Dr. GRPO,
2503.20783)."""


def count(mask: Tensor, aggregation: Aggregation) -> Tensor:
    """Count what divides the sum: tokens, or trajectories that hold any.

    Args:
        mask: (B, T) bool: this rank's sampled tokens of the optimizer batch.

    Returns:
        A float32 scalar; the caller adds those of all ranks.
    """
    counted = mask if aggregation == "token_mean" else mask.any(1)
    return counted.sum().float()


def aggregate(
    values: Tensor,
    mask: Tensor,
    aggregation: Aggregation,
    total: Tensor,
    weights: Tensor | None = None,
) -> Tensor:
    """Sum a micro-batch's values, weighted by trajectory, over the optimizer batch's count.

    Args:
        values: (B, T).
        mask: (B, T) bool; whole trajectories, so that their lengths are known here.
        total: The sum of ``count`` over all ranks.
        weights: (B,) of the trajectories; None weighs each 1.
    """
    if weights is not None:
        values = values * weights[:, None]
    if aggregation == "sequence_mean_token_mean":
        values = values / mask.sum(1, keepdim=True).clamp(min=1)
    return masked_sum(values, mask) / total.clamp(min=1)
