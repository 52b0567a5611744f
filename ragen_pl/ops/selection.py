"""Choose which groups the policy learns from: one pure function per rule.

A rule takes one score per group, (G,) with NaN where a group has none, and returns a bool mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

ZERO_STD = 1e-10
"""Scores up to here count as zero: rounding leaves a little of equal returns."""


def group_std(returns: Tensor, survived: Tensor) -> Tensor:
    """Return each group's standard deviation of returns (ddof 1) over its surviving members.

    StarPO-S's uncertainty U (RAGEN, section on trajectory filtering).

    Args:
        returns: (G, N) raw returns; what stands at members that did not survive does not matter.
        survived: (G, N) bool.

    Returns:
        (G,) float64; NaN where fewer than two members survived.
    """
    values = torch.where(survived, returns.double(), 0.0)
    count = survived.sum(dim=1).double()
    mean = values.sum(dim=1) / count.clamp(min=1)
    centred = torch.where(survived, values - mean[:, None], 0.0)
    variance = centred.square().sum(dim=1) / (count - 1).clamp(min=1)
    return torch.where(count >= 2, variance.sqrt(), torch.nan)


def keep_top_fraction(
    scores: Tensor, keep_fraction: float, *, include_zero: bool = False
) -> Tensor:
    """Keep the highest-scoring share of groups (RAGEN's StarPO-S filter, p = 25 %).

    Keeps max(1, ⌊keep_fraction · G⌋) groups; of equal scores the earlier group. Groups without a
    score are never kept, and groups whose score is zero only with ``include_zero``, so fewer may
    remain, down to none. ``keep_fraction`` 1 is no filter at all: it keeps every group.

    Args:
        scores: (G,).
        keep_fraction: In (0, 1].
        include_zero: Whether groups that carry no signal may fill up the share.
    """
    if not 0.0 < keep_fraction <= 1.0:
        raise ValueError(f"keep_fraction is {keep_fraction}; it must lie in (0, 1]")
    if keep_fraction == 1.0:
        return torch.ones_like(scores, dtype=torch.bool)
    # The small term undoes rounding: 0.29 · 100 is 28.999…
    wanted = max(1, int(keep_fraction * len(scores) + 1e-9))
    eligible = scores.isnan().logical_not()
    if not include_zero:
        eligible &= scores > ZERO_STD
    ranked = torch.where(eligible, scores.double(), -torch.inf)
    best = torch.sort(ranked, descending=True, stable=True).indices[:wanted]
    kept = torch.zeros_like(eligible)
    kept[best] = True
    return kept & eligible
