"""Score groups by what their members earned, how long they were or how sure.

Inputs are (G, N) per member with a mask of those that survived; scores are (G,) float64 with NaN
where a group has none. Whether a group's members fared differently at all is decided here, by
``differ``, for everybody: filter, dynamic sampling, alarm, metrics and estimators.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 1e-6
"""Returns of a group that lie within this share of what they were summed from are equal: updates
hold rewards in float32, whose rounding is 6e-8 of each reward, so what is smaller is not seen
there. A share of the group's own sizes: neither the unit of reward nor other groups matter."""


def differ(returns: Tensor, sizes: Tensor, groups: Tensor, count: int) -> Tensor:
    """Say which groups hold returns that differ, by more than rounding explains; (count,) bool.

    A group of one, or of none, holds nothing that differs.

    Args:
        returns: (n,).
        sizes: (n,): the absolute rewards that each return was summed from, which bound its
            rounding.
        groups: (n,) int, which of ``count`` groups each belongs to.
        count: How many groups there are.
    """
    returns, sizes = returns.double(), sizes.double()
    lowest = returns.new_full((count,), torch.inf).scatter_reduce(0, groups, returns, "amin")
    highest = returns.new_full((count,), -torch.inf).scatter_reduce(0, groups, returns, "amax")
    size = sizes.new_zeros(count).scatter_reduce(0, groups, sizes, "amax")
    return highest - lowest > _ROUNDING * size


def carries_signal(returns: Tensor, sizes: Tensor, survived: Tensor) -> Tensor:
    """Say which groups' members fared differently, so that comparing them teaches something.

    Args:
        returns: (G, N); what stands at members that did not survive does not matter.
        sizes: (G, N): the absolute rewards that each was summed from.
        survived: (G, N) bool.

    Returns:
        (G,) bool; false where fewer than two members survived.
    """
    rows = torch.nonzero(survived)[:, 0]
    return differ(returns[survived], sizes[survived], rows, len(returns))


def group_std(returns: Tensor, sizes: Tensor, survived: Tensor) -> Tensor:
    """Return each group's standard deviation of returns (ddof 1) over its surviving members.

    StarPO-S's uncertainty U (RAGEN, section on trajectory filtering). Exactly 0 where the group
    carries no signal: rounding must not rank groups.

    Args:
        returns: (G, N) raw returns; what stands at members that did not survive does not matter.
        sizes: (G, N): the absolute rewards that each was summed from.
        survived: (G, N) bool.

    Returns:
        (G,) float64; NaN where fewer than two members survived.
    """
    values = torch.where(survived, returns.double(), 0.0)
    count = survived.sum(dim=1).double()
    mean = values.sum(dim=1) / count.clamp(min=1)
    centred = torch.where(survived, values - mean[:, None], 0.0)
    variance = centred.square().sum(dim=1) / (count - 1).clamp(min=1)
    std = torch.where(carries_signal(returns, sizes, survived), variance.sqrt(), 0.0)
    return torch.where(count >= 2, std, torch.nan)


def group_mean(values: Tensor, survived: Tensor) -> Tensor:
    """Return each group's mean over its surviving members, (G,); NaN where none survived.

    Args:
        values: (G, N); what stands at members that did not survive does not matter.
        survived: (G, N) bool.
    """
    count = survived.sum(dim=1)
    total = torch.where(survived, values.double(), 0.0).sum(dim=1)
    return torch.where(count >= 1, total / count.clamp(min=1), torch.nan)
