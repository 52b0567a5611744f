"""Score groups by what their members earned, how long they were or how sure.

Inputs are (G, N) per member with a mask of those that survived; scores are (G,) float64 with NaN
where a group has none.
"""

from __future__ import annotations

import torch
from torch import Tensor


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


def group_mean(values: Tensor, survived: Tensor) -> Tensor:
    """Return each group's mean over its surviving members, (G,); NaN where none survived.

    Args:
        values: (G, N); what stands at members that did not survive does not matter.
        survived: (G, N) bool.
    """
    count = survived.sum(dim=1)
    total = torch.where(survived, values.double(), 0.0).sum(dim=1)
    return torch.where(count >= 1, total / count.clamp(min=1), torch.nan)


def carries_signal(returns: Tensor, survived: Tensor, epsilon: float) -> Tensor:
    """Say which groups' members fared differently, so that comparing them teaches something.

    A spread counts as none up to ``epsilon`` times the largest absolute return of the batch: the
    answer does not depend on the unit of reward, nor on what rounding leaves of equal returns.

    Args:
        returns: (G, N) of all ranks.
        survived: (G, N) bool.
        epsilon: Share of the largest absolute return, in [0, 1).

    Returns:
        (G,) bool; false where fewer than two members survived.
    """
    if not 0.0 <= epsilon < 1.0:
        raise ValueError(f"epsilon is {epsilon}; it is a share of the largest return, in [0, 1)")
    sizes = torch.where(survived, returns.double().abs(), 0.0)
    largest = sizes.max() if sizes.numel() else sizes.new_zeros(())
    return group_std(returns, survived) > epsilon * largest
