"""Choose which groups the policy learns from: one pure function per rule.

A rule takes one score per group, (G,) with NaN where a group is out of the question, and returns a
bool mask, or weights. Of equal scores the earlier group wins: callers sort groups by identity, so
that the choice is the same on every rank.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Order = Literal["largest", "smallest"]
_ROUNDING = 1e-9
"""Relative slack at thresholds: 0.29 · 100 is 28.999…, and shares of a sum miss 1 by a little."""


def ranking(scores: Tensor, order: Order = "largest") -> Tensor:
    """List the groups that have a score, best first; of equal ones the earlier first.

    Args:
        scores: (G,).
        order: Which scores are best.

    Returns:
        Indices into ``scores``.
    """
    if order not in ("largest", "smallest"):
        raise ValueError(f"order is {order!r}; it must be largest or smallest")
    scored = torch.nonzero(scores.isnan().logical_not())[:, 0]
    by_score = torch.sort(scores[scored].double(), descending=order == "largest", stable=True)
    return scored[by_score.indices]


def _mask(scores: Tensor, chosen: Tensor) -> Tensor:
    kept = torch.zeros_like(scores, dtype=torch.bool)
    kept[chosen] = True
    return kept


def top_fraction(scores: Tensor, fraction: float, order: Order = "largest") -> Tensor:
    """Keep the best max(1, ⌊fraction · G⌋) groups (RAGEN's StarPO-S filter, p = 25 %).

    The share is of all groups; those without a score are never kept, so fewer may remain.

    Args:
        scores: (G,).
        fraction: In (0, 1].
        order: Which scores are best.
    """
    _check_share("fraction", fraction)
    wanted = max(1, int(fraction * len(scores) + _ROUNDING))
    return _mask(scores, ranking(scores, order)[:wanted])


def top_k(scores: Tensor, k: int, order: Order = "largest") -> Tensor:
    """Keep the best ``k`` groups, or all that have a score.

    Args:
        scores: (G,).
        k: At least 1.
        order: Which scores are best.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    return _mask(scores, ranking(scores, order)[:k])


def top_p(scores: Tensor, p: float, order: Order = "largest") -> Tensor:
    """Keep the shortest prefix of the ranking that holds the share ``p`` of the total score.

    RAGEN-2's filter (2604.06268), where the score is the variance. Scale-free. Where every score
    is zero, each group holds the same share.

    Args:
        scores: (G,), none negative.
        p: In (0, 1].
        order: Which scores are best.
    """
    _check_share("p", p)
    _check_positive(scores)
    ranked = ranking(scores, order)
    mass = scores[ranked].double()
    return _mask(scores, ranked[: _nucleus(mass if mass.any() else torch.ones_like(mass), p)])


def top_p_softmax(scores: Tensor, p: float, temperature: float, order: Order = "largest") -> Tensor:
    """Keep the shortest prefix of the ranking that holds ``p`` of the softmax of the scores.

    Scores are divided by the largest absolute one first, which makes the rule scale-free; plain
    softmax keeps everything where returns are small.

    Args:
        scores: (G,).
        p: In (0, 1].
        temperature: In units of the largest absolute score, above 0.
        order: Which scores are best.
    """
    _check_share("p", p)
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    ranked = ranking(scores, order)
    if not len(ranked):
        return _mask(scores, ranked)
    values = scores[ranked].double()
    largest = values.abs().max()
    values = values / largest if largest > 0 else values
    sign = 1.0 if order == "largest" else -1.0
    return _mask(scores, ranked[: _nucleus(torch.softmax(sign * values / temperature, 0), p)])


def _nucleus(mass: Tensor, p: float) -> int:
    """Count the leading entries that together hold the share ``p`` of the mass."""
    share = mass.cumsum(0) / mass.sum()
    return int((share < p * (1 - _ROUNDING)).sum()) + 1


def min_p(scores: Tensor, p: float, order: Order = "largest") -> Tensor:
    """Keep the groups within a factor ``p`` of the best one: at least p times the largest score,
    or at most the smallest divided by p. Scale-free.

    Args:
        scores: (G,), none negative.
        p: In (0, 1]; 1 keeps those that tie with the best.
        order: Which scores are best.
    """
    _check_share("p", p)
    _check_positive(scores)
    ranked = ranking(scores, order)
    if not len(ranked):
        return _mask(scores, ranked)
    best = scores[ranked[0]]
    # Comparisons with NaN are false.
    return scores >= p * best if order == "largest" else scores * p <= best


def percentile_band(scores: Tensor, low: float, high: float) -> Tensor:
    """Keep the groups whose place in the ranking, from the lowest score up, lies in [low, high).

    Bands that share a border share no group, and together keep all. A band narrower than one group
    may keep none.

    Args:
        scores: (G,).
        low: Share of the scored groups below the band.
        high: Share of the scored groups below its upper end.
    """
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"low is {low} and high is {high}; the band needs 0 ≤ low < high ≤ 1")
    ranked = ranking(scores)
    first, last = (int(share * len(ranked) + _ROUNDING) for share in (low, high))
    return _mask(scores, ranked[len(ranked) - last : len(ranked) - first])


def soft_weights(scores: Tensor, power: float = 1.0) -> Tensor:
    """Weigh groups by their score instead of dropping any: w ∝ score^power.

    The mean is one over the groups that keep a weight above 0, so the step does not shrink.
    Scale-free. Where every score is zero, each group weighs one.

    Args:
        scores: (G,), none negative.
        power: Above 0; the higher, the nearer to a hard choice.

    Returns:
        (G,) float64, 0 where a group has no score.
    """
    if power <= 0:
        raise ValueError(f"power is {power}; it must be above 0")
    _check_positive(scores)
    scored = scores.isnan().logical_not()
    values = torch.where(scored, scores.double(), 0.0)
    if not values.any():
        return scored.double()
    weights = (values / values.max()).pow(power)
    return weights * (weights > 0).sum() / weights.sum()


def fill_with_signal(signal: Tensor, wanted: int) -> Tensor:
    """Choose ``wanted`` groups: the first that carry signal, then the first of the others.

    What dynamic sampling keeps of its collections (DAPO, 2503.14476, section 3.2).

    Args:
        signal: (G,) bool.
        wanted: How many to choose; all where there are fewer.
    """
    order = torch.argsort(signal.logical_not().to(torch.uint8), stable=True)
    return _mask(signal, order[:wanted])


def _check_share(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; it must lie in (0, 1]")


def _check_positive(scores: Tensor) -> None:
    if bool((scores < 0).any()):
        raise ValueError(
            f"a score is {float(scores[scores < 0][0])}; this rule compares sizes and needs scores "
            "of 0 or more"
        )


# --- scores of groups -----------------------------------------------------------------------------


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


def has_signal(returns: Tensor, sizes: Tensor, valid: Tensor) -> Tensor:
    """Say which groups' members fared differently, so that comparing them teaches something.

    Args:
        returns: (G, N); what stands at members that did not survive does not matter.
        sizes: (G, N): the absolute rewards that each was summed from.
        survived: (G, N) bool.

    Returns:
        (G,) bool; false where fewer than two members survived.
    """
    rows = torch.nonzero(valid)[:, 0]
    return differ(returns[valid], sizes[valid], rows, len(returns))


def group_std(returns: Tensor, sizes: Tensor, valid: Tensor) -> Tensor:
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
    values = torch.where(valid, returns.double(), 0.0)
    count = valid.sum(dim=1).double()
    mean = values.sum(dim=1) / count.clamp(min=1)
    centerd = torch.where(valid, values - mean[:, None], 0.0)
    variance = centerd.square().sum(dim=1) / (count - 1).clamp(min=1)
    std = torch.where(has_signal(returns, sizes, valid), variance.sqrt(), 0.0)
    return torch.where(count >= 2, std, torch.nan)


def group_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Return each group's mean over its surviving members, (G,); NaN where none survived.

    Args:
        values: (G, N); what stands at members that did not survive does not matter.
        survived: (G, N) bool.
    """
    count = valid.sum(dim=1)
    total = torch.where(valid, values.double(), 0.0).sum(dim=1)
    return torch.where(count >= 1, total / count.clamp(min=1), torch.nan)


# --- members within groups ------------------------------------------------------------------------


def max_variance_subset(returns: Tensor, valid: Tensor, count: int) -> Tensor:
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
    kept = valid.clone()
    place = torch.arange(count, device=returns.device)
    low = torch.arange(count + 1, device=returns.device)[:, None]
    for group, alive in enumerate(valid):
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
