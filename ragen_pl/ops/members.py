"""Choose members within groups."""

from __future__ import annotations

import torch
from torch import Tensor


def most_varied_members(returns: Tensor, survived: Tensor, count: int) -> Tensor:
    """Keep the ``count`` surviving members of each group whose returns vary most.

    Variance is convex in every member's return, so a best subset takes the j lowest and the
    count - j highest of the sorted returns for some j; every j is tried. Of equally varied subsets
    the one with more high returns wins, of equal returns the earlier member among the low ones and
    the later among the high ones.

    Args:
        returns: (G, N); what stands at members that did not survive does not matter.
        survived: (G, N) bool.
        count: At least 2.

    Returns:
        (G, N) bool; a group with ``count`` survivors or fewer keeps them all.
    """
    if count < 2:
        raise ValueError(f"count is {count}; fewer than 2 members have no variance")
    kept = survived.clone()
    place = torch.arange(count, device=returns.device)
    low = torch.arange(count + 1, device=returns.device)[:, None]
    for group, alive in enumerate(survived):
        members = torch.nonzero(alive)[:, 0]
        spare = len(members) - count
        if spare <= 0:
            continue
        values, order = torch.sort(returns[group, members].double(), stable=True)
        subsets = place + spare * (place >= low)  # row j: the j lowest, then the highest
        variance = values[subsets].var(dim=1)
        tied = variance >= variance.max() * (1 - 1e-9)  # rounding must not decide
        best = subsets[torch.argmax(tied.to(torch.uint8))]
        kept[group] = False
        kept[group, members[order[best]]] = True
    return kept
