"""Statistics against published values, closed forms and enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.training.evaluation.success_statistics import (
    bootstrap_interval,
    effective_sample_size,
    mcnemar_p_value,
    mean_over_starts,
    newcombe_interval,
    paired_difference,
    pass_at_k,
    sign_flip_p_value,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe 1998, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_interval(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_of_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_counts_subsets(case: tuple[int, int]) -> None:
    count, successes = case
    tries = [True] * successes + [False] * (count - successes)
    for k in range(1, count + 1):
        subsets = list(itertools.combinations(tries, k))
        share = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k(count, successes, k) == pytest.approx(share)


def test_pass_at_k_refuses_more_tries_than_there_are() -> None:
    with pytest.raises(ValueError, match="k is 5"):
        pass_at_k(4, 1, 5)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_starts_played_once_count_in_full(outcomes: list[bool]) -> None:
    assert effective_sample_size([[win] for win in outcomes]) == pytest.approx(len(outcomes))


def test_effective_sample_sizes_by_hand() -> None:
    """The start decides; it plays no part; half and half: clusters' variance 3/2 · 8 / 12² over
    1/2 · 1/2 / 11 makes a design effect of 11/3."""
    assert effective_sample_size([[True] * 50, [False] * 50]) == pytest.approx(2)
    assert effective_sample_size([[True, False] * 25] * 2) == pytest.approx(100)
    third = [[True] * 4, [False] * 4, [True, True, False, False]]
    assert effective_sample_size(third) == pytest.approx(12 / (11 / 3))
    assert effective_sample_size([[True] * 5] * 10) == 10
    assert effective_sample_size([*[[False] * 3] * 10, [False]]) == 11
    assert effective_sample_size([[True] * 5] * 9) == 45
    assert effective_sample_size([[True] * 5]) == 5
    assert effective_sample_size([[True, False]]) == 2
    assert effective_sample_size([]) == 0


def test_a_start_counts_once_however_often_it_was_played() -> None:
    """Rates of 1, 0 and 1/2 of 1, 1 and 4 trajectories: N = 3² / (1 + 1 + 1/4) = 4, and the design
    effect of (1/4 + 1/4) / (3 · 2) over 1/4 / 3 is 1."""
    uneven = [[True], [False], [True, True, False, False]]
    assert mean_over_starts(uneven) == 0.5
    assert effective_sample_size(uneven) == pytest.approx(4)


@pytest.mark.parametrize(("starts", "tries"), [(16, 16), (64, 4), (256, 1)])
def test_the_interval_holds_the_truth_however_often_starts_are_played(
    starts: int, tries: int
) -> None:
    """Starts of very unequal difficulty, whose mean is 0.6: of 16 played 16 times the interval of
    independent trajectories holds it in three of five evaluation sets."""
    rng, held, eval_sets = random.Random(0), 0, 600
    naive = 0
    for _ in range(eval_sets):
        chances = [rng.betavariate(0.6, 0.4) for _ in range(starts)]
        outcomes = [[rng.random() < chance for _ in range(tries)] for chance in chances]
        share, count = sum(map(sum, outcomes)) / (starts * tries), effective_sample_size(outcomes)
        low, high = wilson_interval(share * count, count)
        held += low <= 0.6 <= high
        low, high = wilson_interval(share * starts * tries, starts * tries)
        naive += low <= 0.6 <= high
    assert 0.92 <= held / eval_sets <= 0.98
    assert (naive / eval_sets < 0.85) == (tries > 1)


# --- paired outcomes ------------------------------------------------------------------------------


@given(st.integers(0, 6), st.integers(0, 6))
def test_mcnemar_enumerates_the_signs_of_discordant_pairs(gained: int, lost: int) -> None:
    discordant, observed = gained + lost, abs(gained - lost)
    sums = [abs(sum(signs)) for signs in itertools.product((-1, 1), repeat=discordant)]
    assert mcnemar_p_value(gained, lost) == pytest.approx(fmean(s >= observed for s in sums))


def test_newcombe_interval() -> None:
    """The example of Newcombe 1998, Statistics in Medicine 17, 2635, by method 10."""
    assert newcombe_interval(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@given(*[st.integers(0, 30)] * 4)
def test_newcombe_interval_is_symmetric(both: int, gained: int, lost: int, neither: int) -> None:
    low, high = newcombe_interval(both, gained, lost, neither)
    assert newcombe_interval(both, lost, gained, neither) == pytest.approx((-high, -low))
    assert newcombe_interval(neither, lost, gained, both) == pytest.approx((-high, -low))


def test_newcombe_interval_holds_the_truth() -> None:
    rng, held, few = random.Random(0), 0, 1500
    for _ in range(few):
        cells = [0, 0, 0, 0]
        for kind in rng.choices(range(4), (0.5, 0.2, 0.05, 0.25), k=60):
            cells[kind] += 1
        low, high = newcombe_interval(*cells)
        held += low <= 0.15 <= high
    assert 0.93 <= held / few <= 0.98


def test_newcombe_interval_of_equal_policies_has_a_width() -> None:
    low, high = newcombe_interval(50, 0, 0, 50)
    assert -0.1 < low < 0 < high < 0.1
    assert newcombe_interval(0, 0, 0, 0) == (-1.0, 1.0)


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 20))
def test_sign_flips_sample_mcnemar(gained: int, lost: int, equal: int) -> None:
    differences = [1.0] * gained + [-1.0] * lost + [0.0] * equal
    if differences:
        expected = mcnemar_p_value(gained, lost)
        assert sign_flip_p_value(differences) == pytest.approx(expected, abs=0.02)


def test_bootstrap_interval_of_a_normal_mean() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.1, 1) for _ in range(400)]
    low, high = bootstrap_interval(values)
    assert (high - low) / 2 == pytest.approx(1.96 / 20, rel=0.15)
    assert (low + high) / 2 == pytest.approx(fmean(values), abs=0.01)
    assert bootstrap_interval(values) == (low, high)


def singles(successes: Sequence[float]) -> list[list[bool]]:
    return [[bool(each)] for each in successes]


def tries(share: float, count: int) -> list[bool]:
    return [number < round(share * count) for number in range(count)]


def test_paired_difference_of_single_tries() -> None:
    first = singles([0.0] * 6 + [1.0] * 4)
    second = singles([1.0] * 3 + [0.0] * 3 + [1.0] * 3 + [0.0])
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(0.2)
    assert found.count == 10
    assert found.p_value == pytest.approx(mcnemar_p_value(3, 1))
    assert (found.low, found.high) == newcombe_interval(3, 3, 1, 3)


def test_paired_difference_of_several_tries_is_over_starts() -> None:
    first = [tries(share, 4) for share in (0.25, 0.5, 0.75, 0.0)] * 20
    second = [tries(share, 4) for share in (0.5, 0.75, 1.0, 0.25)] * 20
    found = paired_difference(first, second)
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)
    assert found.p_value < 0.001


def test_few_starts_stand_for_themselves() -> None:
    """Both starts gain one success of sixteen: equal gains say nothing of how sure they are."""
    first, second = [tries(5 / 16, 16), tries(6 / 16, 16)], [tries(6 / 16, 16), tries(7 / 16, 16)]
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(1 / 16)
    assert found.low < -0.1 < 0.25 < found.high
    assert found.p_value > 0.5
    sure = paired_difference([tries(0.0, 16)] * 2, [tries(1.0, 16)] * 2)
    assert sure.low > 0.8
    assert sure.high == 1.0
    assert sure.p_value < 0.001


def test_few_starts_with_equal_tries_have_the_table_of_fisher() -> None:
    """On one start the permutations are those of Fisher's exact test."""
    found = paired_difference([tries(1 / 8, 8)], [tries(6 / 8, 8)])
    ways = [math.comb(7, k) * math.comb(9, 8 - k) for k in range(8)]
    exact = sum(each for k, each in enumerate(ways) if abs(2 * k - 7) >= 5) / math.comb(16, 8)
    assert found.p_value == pytest.approx(exact, abs=0.006)


@pytest.mark.parametrize(("rates", "count"), [((0.2, 0.7), 16), ((0.5, 0.95), 8)])
def test_intervals_of_few_starts_cover_the_truth(rates: tuple[float, ...], count: int) -> None:
    rng, gain, covered, found, trials = random.Random(0), 0.05, 0, 0, 300

    def play(rate: float) -> list[bool]:
        return [rng.random() < rate for _ in range(count)]

    for _ in range(trials):
        first = [play(rate) for rate in rates]
        truth = paired_difference(first, [play(rate + gain) for rate in rates])
        covered += truth.low <= gain <= truth.high
        found += paired_difference(first, [play(rate) for rate in rates]).p_value < 0.05
    assert covered >= 0.93 * trials
    assert found <= 0.075 * trials


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=2, max_size=20))
def test_a_policy_does_not_differ_from_itself(own: list[list[bool]]) -> None:
    found = paired_difference(own, own)
    assert found.low <= found.mean == 0.0 <= found.high
    assert found.p_value == 1.0


@pytest.mark.parametrize("other", [[], [1.0, 0.0]])
def test_unpaired_starts_are_refused(other: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference(singles([1.0] if other else []), singles(other))
