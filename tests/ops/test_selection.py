"""Filter rules: worked examples, and properties for any scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms import filters as filter_rules
from ragen_pl.algorithms.filters import (
    FilterRule,
    MinP,
    PercentileBand,
    SoftmaxTopP,
    SoftWeights,
    TopFraction,
    TopK,
    TopP,
)
from ragen_pl.ops.selection import (
    fill_with_signal,
    min_p,
    percentile_band,
    ranking,
    soft_weights,
    top_fraction,
    top_k,
    top_p,
    top_p_softmax,
)

Rule = Callable[[Tensor], Tensor]
NAN = math.nan
# Spreads of a Sokoban batch of eight groups.
STDS = [0.0, 0.0, 1.5, 5.6, 4.2, 0.1, 0.2, 4.4]
RULES: dict[str, Rule] = {
    "top_fraction": TopFraction(0.4),
    "top_fraction smallest": TopFraction(0.4, "smallest"),
    "top_k": TopK(3),
    "top_k smallest": TopK(3, "smallest"),
    "top_p": TopP(0.8),
    "top_p smallest": TopP(0.3, "smallest"),
    "softmax": SoftmaxTopP(0.8, 0.2),
    "softmax smallest": SoftmaxTopP(0.5, 0.2, "smallest"),
    "min_p": MinP(0.5),
    "min_p smallest": MinP(0.5, "smallest"),
    "band": PercentileBand(0.25, 0.75),
    "soft": SoftWeights(2.0),
}
every_rule = pytest.mark.parametrize("name", RULES)

# Distinct, so that an order is not decided by the place in the batch.
distinct_scores = st.lists(st.integers(1, 10_000), min_size=1, max_size=24, unique=True).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
any_scores = st.lists(
    st.one_of(st.integers(0, 4).map(float), st.just(NAN)), min_size=1, max_size=16
).map(lambda values: torch.tensor(values, dtype=torch.float64))
shares = st.floats(0.01, 1.0)


def test_every_rule_is_in_the_table() -> None:
    kinds = {
        kind
        for kind in vars(filter_rules).values()
        if isinstance(kind, type) and issubclass(kind, FilterRule) and kind is not FilterRule
    }
    assert {type(rule) for rule in RULES.values()} == kinds


def t(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def places(mask: Tensor) -> list[int]:
    return torch.nonzero(mask)[:, 0].tolist()


def test_ranking_skips_groups_without_a_score_and_breaks_ties_by_index() -> None:
    scores = t([1.0, NAN, 2.0, 1.0, 2.0])
    assert ranking(scores).tolist() == [2, 4, 0, 3]
    assert ranking(scores, "smallest").tolist() == [0, 3, 2, 4]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (lambda s: top_fraction(s, 0.25), [3, 7]),
        (lambda s: top_fraction(s, 0.5), [2, 3, 4, 7]),
        (lambda s: top_fraction(s, 0.01), [3]),
        (lambda s: top_fraction(s, 0.25, "smallest"), [0, 1]),
        (lambda s: top_k(s, 3), [3, 4, 7]),
        (lambda s: top_k(s, 99), list(range(8))),
        (lambda s: top_k(s, 1, "smallest"), [0]),
        # Of 16.0: 5.6, 10.0, 14.2, 15.7 → 14.4 needs four.
        (lambda s: top_p(s, 0.9), [2, 3, 4, 7]),
        # Variances 31.36, 19.36, 17.64, 2.25, 0.04, 0.01: 63.6 of 70.66 needs three.
        (lambda s: top_p(s.square(), 0.9), [3, 4, 7]),
        # Zeros hold nothing, so the whole mass is reached without them …
        (lambda s: top_p(s, 1.0), [2, 3, 4, 5, 6, 7]),
        # … from above; from below they come first: 0, 0, 0.1, 0.3, 1.8, 6.0 → 1.6 needs five.
        (lambda s: top_p(s, 0.1, "smallest"), [0, 1, 2, 5, 6]),
        # e^0, e^(-1.2), e^(-1.4) make 0.83 of the mass at a temperature of one.
        (lambda s: top_p_softmax(s, 0.9, 1 / 5.6), [3, 4, 7]),
        (lambda s: min_p(s, 0.2), [2, 3, 4, 7]),
        (lambda s: min_p(s, 1.0), [3]),
        (lambda s: min_p(s, 0.5, "smallest"), [0, 1]),
        (lambda s: percentile_band(s, 0.75, 1.0), [3, 7]),
        (lambda s: percentile_band(s, 0.0, 0.25), [0, 1]),
        (lambda s: percentile_band(s, 0.25, 0.5), [5, 6]),
    ],
)
def test_examples(rule: Rule, kept: list[int]) -> None:
    assert places(rule(t(STDS))) == kept


def test_soft_weights_are_in_proportion_with_mean_one_over_the_kept() -> None:
    assert soft_weights(t([1.0, 3.0, 0.0, NAN])).tolist() == [0.5, 1.5, 0.0, 0.0]
    assert soft_weights(t([1.0, 3.0, 0.0]), 2.0).tolist() == pytest.approx([0.2, 1.8, 0.0])


def test_a_softmax_of_small_returns_drops_groups() -> None:
    """In the unit of rewards it keeps all of these; divided by the largest it does not."""
    small = t([0.0, 0.1, 0.05, 0.4, 0.43, 0.2, 0.0, 0.3])
    assert places(top_p_softmax(small, 0.9, 1 / 0.43)) == list(range(8))
    # e^5, e^4.65, e^3.49 make 286 of 303.
    assert places(top_p_softmax(small, 0.9, 0.2)) == [3, 4, 7]


@pytest.mark.parametrize("order", ["largest", "smallest"])
def test_where_all_scores_are_zero_they_share_the_mass(order: str) -> None:
    zeros = torch.zeros(4)
    assert places(top_p(zeros, 0.5, order)) == [0, 1]  # type: ignore[arg-type]
    assert places(top_p_softmax(zeros, 0.5, 0.2, order)) == [0, 1]  # type: ignore[arg-type]
    assert places(min_p(zeros, 0.5, order)) == [0, 1, 2, 3]  # type: ignore[arg-type]
    assert soft_weights(zeros).tolist() == [1.0] * 4


def test_ties_go_to_the_earlier_group() -> None:
    ones = torch.ones(4)
    for kept in (
        top_fraction(ones, 0.5),
        top_fraction(ones, 0.5, "smallest"),
        top_k(ones, 2),
        top_p(ones, 0.5),
        top_p_softmax(ones, 0.5, 0.2),
        percentile_band(ones, 0.5, 1.0),
    ):
        assert places(kept) == [0, 1]


def test_rounding_does_not_cost_a_group() -> None:
    assert int(top_fraction(torch.arange(1.0, 101.0), 0.29).sum()) == 29
    assert int(percentile_band(torch.arange(1.0, 101.0), 0.0, 0.29).sum()) == 29
    # Six tenths of ten equal scores are six of them, whatever 0.1 + 0.1 + … comes to.
    assert int(top_p(torch.full((10,), 0.1, dtype=torch.float64), 0.6).sum()) == 6


def test_no_more_than_rounding_gains_a_group() -> None:
    """The slack of thresholds is far below the one up to which returns are equal."""
    assert int(top_fraction(torch.arange(1.0, 11.0), 0.29999995).sum()) == 2
    assert int(percentile_band(torch.arange(1.0, 11.0), 0.0, 0.29999995).sum()) == 2
    assert int(top_p(torch.full((10,), 0.1, dtype=torch.float64), 0.6000003).sum()) == 7


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda s: top_fraction(s, 0.0), "fraction is 0.0"),
        (lambda s: top_fraction(s, 1.5), "fraction is 1.5"),
        (lambda s: top_k(s, 0), "k is 0"),
        (lambda s: top_p(s, 0.0), "p is 0.0"),
        (lambda s: top_p_softmax(s, 1.1, 0.2), "p is 1.1"),
        (lambda s: top_p_softmax(s, 0.9, 0.0), "temperature is 0.0"),
        (lambda s: min_p(s, 2.0), "p is 2.0"),
        (lambda s: percentile_band(s, 0.5, 0.5), "low is 0.5"),
        (lambda s: percentile_band(s, 0.5, 1.5), "high is 1.5"),
        (lambda s: soft_weights(s, 0.0), "power is 0.0"),
        (lambda s: top_k(s, 1, "best"), "order is 'best'"),  # type: ignore[arg-type]
        (lambda s: top_p(-s, 0.5), "score is -1.0"),
        (lambda s: min_p(-s, 0.5), "score is -1.0"),
        (lambda s: soft_weights(-s), "score is -1.0"),
    ],
)
def test_bad_keys_are_refused(call: Rule, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        call(torch.ones(2))


@every_rule
@given(any_scores)
def test_groups_without_a_score_are_never_kept(name: str, scores: Tensor) -> None:
    kept = RULES[name](scores)
    assert kept.shape == scores.shape
    assert not (kept > 0)[scores.isnan()].any()
    if name != "band" and not scores.isnan().all():
        assert (kept > 0).any()


@every_rule
@given(any_scores)
def test_a_group_without_a_score_changes_nothing_for_the_others(name: str, scores: Tensor) -> None:
    if name.startswith("top_fraction"):
        return  # a share of all groups
    kept = RULES[name](scores)[scores.isnan().logical_not()]
    alone = RULES[name](scores[scores.isnan().logical_not()])
    assert torch.allclose(kept.double(), alone.double(), rtol=1e-12, atol=0)


@every_rule
@given(distinct_scores, st.randoms(use_true_random=False))
def test_permutation_equivariance(name: str, scores: Tensor, random: object) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)  # type: ignore[attr-defined]
    permuted, plain = RULES[name](scores[order]), RULES[name](scores)[order]
    assert torch.allclose(permuted.double(), plain.double(), rtol=1e-12, atol=0)


@every_rule
@given(distinct_scores, st.integers(-40, 40))
def test_the_unit_of_reward_does_not_matter(name: str, scores: Tensor, exponent: int) -> None:
    # Powers of two: exact, so that rounding at a threshold is not what is tested.
    assert torch.equal(RULES[name](scores * 2.0**exponent), RULES[name](scores))


@every_rule
def test_one_group_and_no_group(name: str) -> None:
    kept = RULES[name](torch.ones(1))
    assert float(kept.double().sum()) == (0.0 if name == "band" else 1.0)
    assert RULES[name](torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    "rule",
    [
        lambda s, p: top_fraction(s, p),
        lambda s, p: top_fraction(s, p, "smallest"),
        lambda s, p: top_p(s, p),
        lambda s, p: top_p(s, p, "smallest"),
        lambda s, p: top_p_softmax(s, p, 0.3),
        lambda s, p: min_p(s, 1 / (1 + p)),
        lambda s, p: percentile_band(s, 0.0, p),
        lambda s, p: top_k(s, math.ceil(10 * p)),
    ],
)
@given(any_scores, shares, shares)
def test_a_larger_share_keeps_no_less(
    rule: Callable[[Tensor, float], Tensor], scores: Tensor, a: float, b: float
) -> None:
    fewer, more = rule(scores, min(a, b)), rule(scores, max(a, b))
    assert bool((more | ~fewer).all())


@given(any_scores, shares)
def test_the_nucleus_is_the_shortest_that_holds_its_share(scores: Tensor, p: float) -> None:
    total = float(scores.nansum())
    if total == 0:
        return
    held = scores[top_p(scores, p)]
    assert float(held.sum()) >= p * total * (1 - 1e-8)
    assert float(held.sum() - held.min()) < p * total


@given(any_scores, st.lists(st.floats(0.01, 0.99), max_size=4, unique=True))
def test_bands_partition_the_scored_groups(scores: Tensor, borders: list[float]) -> None:
    edges = [0.0, *sorted(borders), 1.0]
    bands = [percentile_band(scores, low, high) for low, high in pairwise(edges)]
    assert torch.equal(torch.stack(bands).sum(0) == 1, scores.isnan().logical_not())


@given(any_scores, st.floats(0.25, 4.0))
def test_soft_weights_average_to_one(scores: Tensor, power: float) -> None:
    weights = soft_weights(scores, power)
    if (weights > 0).any():
        assert float(weights[weights > 0].mean()) == pytest.approx(1.0)
        best = torch.nan_to_num(scores, nan=-1.0).argmax()
        assert weights[best] == weights.max()


def test_the_first_with_signal_are_chosen_and_filled_up_with_the_first_without() -> None:
    signal = torch.tensor([False, True, False, True, True])
    sound = torch.tensor([False, True, True, True, True])
    assert places(fill_with_signal(signal, sound, 2)) == [1, 3]
    assert places(fill_with_signal(signal, sound, 4)) == [1, 2, 3, 4]
    assert places(fill_with_signal(signal, sound, 9)) == [0, 1, 2, 3, 4]
