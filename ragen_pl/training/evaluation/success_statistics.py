"""Statistics of successes: intervals, unbiased pass@k, and the difference of paired outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

_NORMAL_95 = 1.959963984540054
"""The standard normal's 97.5 % point."""
_MANY = 10
"""Initial states that stand for others that were not played; fewer stand for themselves."""
_RESAMPLES = 10_000
"""Resamples of a bootstrap, and random sign flips of a test."""


def wilson_interval(successes: float, count: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of a proportion; (0, 1) for a count of 0."""
    if count == 0:
        return 0.0, 1.0
    share, z = successes / count, _NORMAL_95
    shrink = 1.0 + z * z / count
    center = (share + z * z / (2 * count)) / shrink
    spread = z / shrink * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, center - spread), min(1.0, center + spread)


def mean_over_starts(values: Sequence[Sequence[float]]) -> float:
    """Return the mean over initial states of each state's mean.

    Args:
        values: One or more values of each initial state's trajectories, by initial state.
    """
    return fmean(map(fmean, values))


def effective_sample_size(outcomes: Sequence[Sequence[bool]]) -> float:
    """Return the number of independent trajectories that estimate the success rate equally well.

    The rate p is the mean over K initial states of each state's rate pₖ. If success does not depend
    on the state, it is as good as the mean of N = K² / Σₖ (1 / nₖ) trajectories, which are all of
    them if every state was played equally often. The result is N / deff, where the design effect is
    the rate's variance with states as clusters over that of N independent trajectories:

    deff = [Σₖ (pₖ − p)² / (K (K − 1))] / [p (1 − p) / (N − 1)]

    (Kish 1965; Cochran 1977, §11). It is exactly 1 if every state was played once. It is clamped to
    [1, N / K], because values below 1 are chance and each state is worth at least one trajectory.
    Without a failure, or a success, nothing tells how much the states differ, and the result is K;
    of fewer than ten states, all trajectories: these stand for no others.

    Args:
        outcomes: Success of each trajectory, by initial state.
    """
    num_starts = len(outcomes)
    if num_starts < 2:
        return float(sum(map(len, outcomes)))
    share = mean_over_starts(outcomes)
    if share in (0.0, 1.0):
        return float(num_starts if num_starts >= _MANY else sum(map(len, outcomes)))
    count = _num_independent(outcomes)
    squares = sum((fmean(each) - share) ** 2 for each in outcomes)
    clustered = squares / (num_starts * (num_starts - 1))
    design_effect = clustered / (share * (1 - share) / (count - 1))
    return count / min(max(design_effect, 1.0), count / num_starts)


def _num_independent(outcomes: Sequence[Sequence[bool]]) -> float:
    """Return K² / Σₖ (1 / nₖ), as above."""
    return len(outcomes) ** 2 / sum(1 / len(each) for each in outcomes)


def pass_at_k(count: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from ``count`` ≥ k trajectories of one initial state.

    1 − C(count − successes, k) / C(count, k): the fraction of k-subsets with a success
    (Chen et al., arXiv 2107.03374).
    """
    if not 1 <= k <= count:
        raise ValueError(f"k is {k}; with {count} trajectories per start it must lie in 1..{count}")
    return 1.0 - math.comb(count - successes, k) / math.comb(count, k)


# --- paired outcomes ------------------------------------------------------------------------------


def mcnemar_p_value(gained: int, lost: int) -> float:
    """Return the two-sided p-value of the exact McNemar test; 1 without discordant pairs.

    The binomial probability, at 1/2, of a split of the discordant pairs that is at least as uneven.

    Args:
        gained: Pairs with a success of the second policy alone.
        lost: Pairs with a success of the first policy alone.
    """
    discordant = gained + lost
    tail = sum(math.comb(discordant, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


def newcombe_interval(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two paired proportions, second minus first.

    Newcombe 1998, Statistics in Medicine 17, 2635, method 10: Wilson's intervals of both
    proportions, combined with the correlation of the pairs. Its width is never zero.

    Args:
        both: Pairs in which both succeed.
        gained: Pairs with a success of the second policy alone.
        lost: Pairs with a success of the first policy alone.
        neither: Pairs in which neither succeeds.
    """
    count = both + gained + lost + neither
    if count == 0:
        return -1.0, 1.0
    second, first = (both + gained) / count, (both + lost) / count
    low2, high2 = wilson_interval(both + gained, count)
    low1, high1 = wilson_interval(both + lost, count)
    phi = _correlation(both, gained, lost, neither)
    below = _combined(second - low2, high1 - first, phi)
    above = _combined(high2 - second, first - low1, phi)
    difference = second - first
    return max(-1.0, difference - below), min(1.0, difference + above)


def _correlation(both: int, gained: int, lost: int, neither: int) -> float:
    """Return φ, whose positive numerator is corrected for continuity; 0 with an empty margin."""
    margins = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if margins == 0:
        return 0.0
    product = float(both * neither - gained * lost)
    if product > 0:
        product = max(product - (both + gained + lost + neither) / 2, 0.0)
    return product / math.sqrt(margins)


def _combined(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean over resampled pairs, with a fixed seed."""
    rng, values = np.random.default_rng(0), np.asarray(differences)
    drawn = rng.integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    return float(low), float(high)


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the mean of paired differences, by random sign flips.

    If the policies are equal, each pair's difference has either sign with equal probability. For
    differences of −1, 0 and 1 this is McNemar's test, by sampling. The seed is fixed, and the
    smallest p-value is 1 / 10,001.
    """
    rng, values = np.random.default_rng(0), np.asarray(differences)
    signs = rng.integers(2, size=(_RESAMPLES, len(values))) * 2 - 1
    extreme = np.abs(signs @ values) >= abs(values.sum()) - 1e-9
    return float(extreme.sum() + 1) / (_RESAMPLES + 1)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference in success of two policies that played the same initial states."""

    mean: float
    """Mean over initial states, second policy minus first."""
    low: float
    """Lower end of the mean's 95 % interval."""
    high: float
    p_value: float
    """Probability of a difference at least as large, in either direction, between equal
    policies."""
    count: int
    """Number of initial states."""


def paired_difference(
    first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]]
) -> PairedDifference:
    """Compare two policies' success, paired by initial state.

    Pairing removes the variation in difficulty between initial states. Where each state decides
    (one trajectory of it, or several alike) the interval is Newcombe's and the test McNemar's,
    exact; else a bootstrap and random sign flips over states. Of fewer than ten states with several
    trajectories, which stand for themselves, what varies are the trajectories: the interval
    combines Wilson's of both policies (Zou and Donner 2008), and the test permutes the trajectories
    of each state.

    Args:
        first: Success of the first policy's trajectories, at least one, at each initial state.
        second: The same of the second policy, in the same order of states.

    Raises:
        ValueError: when there are no states, or not equally many.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} initial states cannot be paired")
    old, new = [fmean(each) for each in first], [fmean(each) for each in second]
    differences = [after - before for before, after in zip(old, new, strict=True)]
    mean, count = fmean(differences), len(differences)
    if count < _MANY and max(map(len, (*first, *second))) > 1:
        interval = interval_of_fixed_starts(first, second)
        return PairedDifference(mean, *interval, permutation_p_value(first, second), count)
    if {*old, *new} <= {0.0, 1.0}:
        gained, lost = differences.count(1.0), differences.count(-1.0)
        both = round(sum(old)) - lost
        interval = newcombe_interval(both, gained, lost, count - both - gained - lost)
        return PairedDifference(mean, *interval, mcnemar_p_value(gained, lost), count)
    interval = bootstrap_interval(differences)
    return PairedDifference(mean, *interval, sign_flip_p_value(differences), count)


def interval_of_fixed_starts(
    first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]]
) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two success rates over the same few states.

    Zou and Donner 2008, Statistics in Medicine 27, 1693: the distances of both rates from the ends
    of their Wilson intervals, at the number of trajectories, added as independent ones. Its width
    is never zero.
    """
    (old, low1, high1), (new, low2, high2) = map(_rate, (first, second))
    below, above = math.hypot(new - low2, high1 - old), math.hypot(high2 - new, old - low1)
    return max(-1.0, new - old - below), min(1.0, new - old + above)


def _rate(outcomes: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    rate, count = mean_over_starts(outcomes), _num_independent(outcomes)
    return rate, *wilson_interval(rate * count, count)


def permutation_p_value(first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]]) -> float:
    """Return the two-sided p-value of the difference of two success rates over the same states, by
    random permutations of each state's trajectories between the policies.

    The seed is fixed, and the smallest p-value is 1 / 10,001.
    """
    rng, drawn = np.random.default_rng(0), np.zeros(_RESAMPLES)
    observed = 0.0
    for old, new in zip(first, second, strict=True):
        solved = sum(old) + sum(new)
        failed = len(old) + len(new) - solved
        gained = rng.hypergeometric(solved, failed, len(new), size=_RESAMPLES)
        drawn += gained / len(new) - (solved - gained) / len(old)
        observed += fmean(new) - fmean(old)
    extreme = np.abs(drawn) >= abs(observed) - 1e-9
    return float(extreme.sum() + 1) / (_RESAMPLES + 1)
