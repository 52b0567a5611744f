"""Counts by weight add up, are there, and keep their expectation when rounded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.rollout.shares import expected_counts, rounded_counts


def test_starts_are_split_by_weight_however_many_candidates_there_are() -> None:
    assert expected_counts({"a": 99, "b": 8}, {"a": 1.0, "b": 3.0}, 8) == {"a": 2.0, "b": 6.0}


def test_what_one_difficulty_lacks_goes_to_the_others_by_their_weights() -> None:
    found = expected_counts({"a": 9, "b": 2, "c": 9}, {"a": 1.0, "b": 9.0, "c": 2.0}, 8)
    assert found == pytest.approx({"a": 2.0, "b": 2.0, "c": 4.0})


def test_a_weight_of_zero_comes_last() -> None:
    weights = {"a": 0.0, "b": 1.0, "c": 0.0}
    assert expected_counts({"a": 4, "b": 9, "c": 2}, weights, 9) == {"b": 9, "a": 0, "c": 0}
    found = expected_counts({"a": 4, "b": 6, "c": 2}, weights, 9)
    assert found == pytest.approx({"b": 6, "a": 2, "c": 1})


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.tuples(st.integers(1, 30), st.one_of(st.just(0.0), st.floats(0.01, 1.0))),
        min_size=1,
    ),
    st.floats(0.0, 1.0),
    st.integers(0, 10**6),
)
def test_counts_add_up_and_are_there(
    kinds: Mapping[str, tuple[int, float]], share: float, seed: int
) -> None:
    available = {name: count for name, (count, _) in kinds.items()}
    weights = {name: weight for name, (_, weight) in kinds.items()}
    wanted = round(share * sum(available.values()))
    expected = expected_counts(available, weights, wanted)
    assert sum(expected.values()) == pytest.approx(wanted)
    counts = rounded_counts(expected, random.Random(seed))
    assert sum(counts.values()) == wanted
    for name, count in counts.items():
        assert 0 <= count <= available[name]
        assert abs(count - expected[name]) < 1 + 1e-6
    open_ = [name for name in available if expected[name] < available[name] - 1e-6]
    rates = [expected[name] / weights[name] for name in open_ if weights[name]]
    assert rates == pytest.approx(rates[:1] * len(rates)), "in proportion where there are enough"


class Offset(random.Random):
    """Always draw the same number."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = offset

    def random(self) -> float:
        return self.offset


def test_rounding_keeps_every_expectation() -> None:
    expected = {"a": 0.3, "b": 2.5, "c": 1.0, "d": 0.2}
    total: Counter[str] = Counter()
    for number in range(1000):
        total.update(rounded_counts(expected, Offset((number + 0.5) / 1000)))
    assert {name: total[name] / 1000 for name in expected} == pytest.approx(expected, abs=2e-3)
