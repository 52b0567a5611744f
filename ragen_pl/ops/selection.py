"""Filter rules over groups, the groups' scores, and subsets of their members.

Three parts, all pure functions. *Rules* take one score per group, (G,) with NaN for a group that
cannot be chosen, and return a bool mask, or weights. Of equal scores the earlier group wins:
callers sort groups by identity, so that the choice is the same on every rank. *Scores* take (G, N)
values of the members with a mask of the valid ones, and return (G,) float64 with NaN for a group
that has no score. *Members* are chosen within each group, (G, N).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Order = Literal["largest", "smallest"]

_THRESHOLD_SLACK = 1e-9
"""Relative slack at thresholds: 0.29 · 100 is 28.999…, and cumulative shares miss 1 by a little."""

RETURN_ROUNDING = 1e-6
"""Share of the sum of absolute rewards up to which differences of returns count as rounding.
Updates hold rewards in float32, whose rounding is 6e-8 of each reward, so smaller differences do
not exist there. The sum is the group's own largest one: neither the unit of reward nor other groups
matter."""

# --- filter rules ---------------------------------------------------------------------------------


def ranking(scores: Tensor, order: Order = "largest") -> Tensor:
    """Rank the groups that have a score, best first; groups with equal scores keep their order.

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

    The fraction is of all groups; those without a score are never kept, so fewer may remain.

    Args:
        scores: (G,).
        fraction: Fraction of groups to keep, in (0, 1].
        order: Which scores are best.
    """
    _check_share("fraction", fraction)
    wanted = max(1, int(fraction * len(scores) + _THRESHOLD_SLACK))
    return _mask(scores, ranking(scores, order)[:wanted])


def top_k(scores: Tensor, k: int, order: Order = "largest") -> Tensor:
    """Keep the best ``k`` groups, or all that have a score.

    Args:
        scores: (G,).
        k: Number of groups, at least 1.
        order: Which scores are best.
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    return _mask(scores, ranking(scores, order)[:k])


def top_p(scores: Tensor, p: float, order: Order = "largest") -> Tensor:
    """Keep the shortest prefix of the ranking that holds the share ``p`` of the total score.

    RAGEN-2's filter (2604.06268), whose score is the variance; its code takes the standard
    deviation, and 0.01 off the mass to be reached. Scale-free. If every score is zero, each group
    holds the same share.

    Args:
        scores: (G,), none negative.
        p: Share of the total score, in (0, 1].
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
    softmax keeps everything if returns are small.

    Args:
        scores: (G,).
        p: Share of the softmax, in (0, 1].
        temperature: Temperature in units of the largest absolute score, above 0.
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
    return int((share < p * (1 - _THRESHOLD_SLACK)).sum()) + 1


def min_p(scores: Tensor, p: float, order: Order = "largest") -> Tensor:
    """Keep the groups within a factor ``p`` of the best one: at least p times the largest score,
    or at most the smallest divided by p. Scale-free.

    Args:
        scores: (G,), none negative.
        p: Factor in (0, 1]; 1 keeps those that tie with the best.
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
    """Keep the groups whose rank, from the lowest score up, lies in [low, high).

    Adjacent bands have no group in common, and bands that cover [0, 1] keep all. A band narrower
    than one group may keep none.

    Args:
        scores: (G,).
        low: Share of the scored groups below the band.
        high: Share of the scored groups below its upper end.
    """
    if not 0.0 <= low < high <= 1.0:
        raise ValueError(f"low is {low} and high is {high}; the band needs 0 ≤ low < high ≤ 1")
    ranked = ranking(scores)
    first, last = (int(share * len(ranked) + _THRESHOLD_SLACK) for share in (low, high))
    return _mask(scores, ranked[len(ranked) - last : len(ranked) - first])


def soft_weights(scores: Tensor, power: float = 1.0) -> Tensor:
    """Weight groups by their score instead of dropping any: w ∝ score^power.

    The weights above 0 have mean one, so that the update does not become smaller. Scale-free. If
    every score is zero, each group has weight one.

    Args:
        scores: (G,), none negative.
        power: Exponent, above 0; the higher, the closer to a hard selection.

    Returns:
        (G,) float64, 0 for groups without a score.
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


def fill_with_signal(signal: Tensor, sound: Tensor, wanted: int) -> Tensor:
    """Choose ``wanted`` groups: the first ones with signal, then the first of the other sound ones,
    then the first of the rest.

    Dynamic sampling's choice among the groups it has collected (DAPO, 2503.14476, section 3.2).

    Args:
        signal: (G,) bool.
        sound: (G,) bool: which groups have a member that can be trained on; all with signal do.
        wanted: Number of groups to choose; all are chosen if there are fewer.
    """
    worth = signal.to(torch.uint8) + sound.to(torch.uint8)
    order = torch.argsort(worth, descending=True, stable=True)
    return _mask(signal, order[:wanted])


def _check_share(name: str, value: float) -> None:
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{name} is {value}; it must lie in (0, 1]")


def _check_positive(scores: Tensor) -> None:
    if bool((scores < 0).any()):
        raise ValueError(
            f"a score is {float(scores[scores < 0][0])}; this rule compares magnitudes and needs "
            "scores of 0 or more"
        )


# --- group scores ---------------------------------------------------------------------------------


def has_nonzero_std(returns: Tensor, magnitudes: Tensor, groups: Tensor, num_groups: int) -> Tensor:
    """Mark the groups whose returns differ by more than rounding explains; (num_groups,) bool.

    False for a group with fewer than two returns.

    Args:
        returns: (n,).
        magnitudes: (n,): the sum of absolute rewards behind each return, which bounds its rounding.
        groups: (n,) int, the group of each return.
        num_groups: Number of groups.
    """
    returns, magnitudes = returns.double(), magnitudes.double()
    lowest = returns.new_full((num_groups,), torch.inf).scatter_reduce(0, groups, returns, "amin")
    highest = returns.new_full((num_groups,), -torch.inf).scatter_reduce(0, groups, returns, "amax")
    magnitude = magnitudes.new_zeros(num_groups).scatter_reduce(0, groups, magnitudes, "amax")
    return highest - lowest > RETURN_ROUNDING * magnitude


def has_signal(returns: Tensor, magnitudes: Tensor, valid: Tensor) -> Tensor:
    """Mark the groups whose members earned different returns, so that comparing them is a signal.

    Args:
        returns: (G, N); entries of members that are not valid are ignored.
        magnitudes: (G, N): the sum of absolute rewards behind each return.
        valid: (G, N) bool.

    Returns:
        (G,) bool; false for groups with fewer than two valid members.
    """
    rows = torch.nonzero(valid)[:, 0]
    return has_nonzero_std(returns[valid], magnitudes[valid], rows, len(returns))


def group_std(returns: Tensor, magnitudes: Tensor, valid: Tensor) -> Tensor:
    """Return each group's standard deviation of returns (ddof 1) over its valid members.

    StarPO-S's uncertainty U (RAGEN, section on trajectory filtering). It is exactly 0 for a group
    without signal, so that rounding does not rank groups.

    Args:
        returns: (G, N) raw returns; entries of members that are not valid are ignored.
        magnitudes: (G, N): the sum of absolute rewards behind each return.
        valid: (G, N) bool.

    Returns:
        (G,) float64; NaN for groups with fewer than two valid members.
    """
    values = torch.where(valid, returns.double(), 0.0)
    count = valid.sum(dim=1).double()
    mean = values.sum(dim=1) / count.clamp(min=1)
    centered = torch.where(valid, values - mean[:, None], 0.0)
    variance = centered.square().sum(dim=1) / (count - 1).clamp(min=1)
    std = torch.where(has_signal(returns, magnitudes, valid), variance.sqrt(), 0.0)
    return torch.where(count >= 2, std, torch.nan)


def group_mean(values: Tensor, valid: Tensor) -> Tensor:
    """Return each group's mean over its valid members, (G,); NaN if it has none.

    Args:
        values: (G, N); entries of members that are not valid are ignored.
        valid: (G, N) bool.
    """
    count = valid.sum(dim=1)
    total = torch.where(valid, values.double(), 0.0).sum(dim=1)
    return torch.where(count >= 1, total / count.clamp(min=1), torch.nan)


# --- members within groups ------------------------------------------------------------------------


def max_variance_subset(returns: Tensor, valid: Tensor, count: int) -> Tensor:
    """Keep the ``count`` valid members of each group whose returns vary most.

    Variance is convex in every member's return, so a best subset takes the j lowest and the
    count - j highest of the sorted returns for some j; every j is tried. Among subsets of equal
    variance the one with more high returns is kept; among members with equal returns the earlier
    ones count as lower.

    Args:
        returns: (G, N); entries of members that are not valid are ignored.
        valid: (G, N) bool.
        count: Number of members to keep, at least 2.

    Returns:
        (G, N) bool; a group with at most ``count`` valid members keeps them all.
    """
    if count < 2:
        raise ValueError(f"count is {count}; fewer than 2 members have no variance")
    kept = valid.clone()
    place = torch.arange(count, device=returns.device)
    low = torch.arange(count + 1, device=returns.device)[:, None]
    for group, is_valid in enumerate(valid):
        members = torch.nonzero(is_valid)[:, 0]
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
