"""The reward terms that are not the environment's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.rewards import Overlong, Shaping


@pytest.mark.parametrize(
    ("length", "term"), [(1, 0.0), (24, 0.0), (26, -0.125), (28, -0.25), (32, -0.5), (40, -0.5)]
)
def test_the_penalty_rises_over_the_buffer(length: int, term: float) -> None:
    assert Overlong(buffer=8, penalty=-0.5).term(length, limit=32) == pytest.approx(term)


@given(st.integers(0, 99), st.integers(1, 40), st.integers(41, 60))
def test_a_longer_response_never_pays_less_nor_more_than_the_penalty(
    length: int, buffer: int, limit: int
) -> None:
    """By DAPO's eq. 13: nothing before the buffer, a straight line in it, all beyond."""
    overlong = Overlong(buffer, penalty=-0.5)
    term, longer = (overlong.term(n, limit) for n in (length, length + 1))
    assert -0.5 <= longer <= term <= 0
    assert term - longer <= 0.5 / buffer + 1e-12
    assert (term == 0) == (length <= limit - buffer)
    assert (term == -0.5) == (length >= limit)


def test_terms_appear_only_where_they_are_asked_for() -> None:
    plain = Shaping(-0.1, 0.0, None, 32).terms(
        2.0, is_valid=False, thought_correct=False, length=32
    )
    assert plain == {"env": 2.0, "format": -0.1}
    shaping = Shaping(-0.1, -0.5, Overlong(buffer=4, penalty=-1.0), 32)
    assert shaping.terms(0.0, is_valid=True, thought_correct=False, length=32) == {
        "env": 0.0,
        "format": 0.0,
        "thought": -0.5,
        "overlong": -1.0,
    }
    assert "thought" not in shaping.terms(0.0, is_valid=True, thought_correct=None, length=1)


def test_a_collection_hands_its_keys_on() -> None:
    overlong = Overlong(buffer=4)
    config = RolloutConfig(format_penalty=-0.3, thought_penalty=-0.2, overlong=overlong)
    assert config.shaping == Shaping(-0.3, -0.2, overlong, config.max_response_tokens)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"overlong\.buffer is 0"):
        Overlong(buffer=0)
    with pytest.raises(ValueError, match=r"overlong\.penalty is 1"):
        Overlong(buffer=1, penalty=1)
    with pytest.raises(ValueError, match=r"rollout\.overlong\.buffer is 64"):
        RolloutConfig(overlong=Overlong(buffer=64))


@pytest.mark.parametrize("penalty", [math.nan, -math.inf])
def test_penalties_that_are_not_finite_are_refused(penalty: float) -> None:
    with pytest.raises(ValueError, match="and finite"):
        Overlong(buffer=1, penalty=penalty)
    with pytest.raises(ValueError, match=r"rollout\.format_penalty is .* and finite"):
        RolloutConfig(format_penalty=penalty)
    with pytest.raises(ValueError, match=r"rollout\.thought_penalty is .* and finite"):
        RolloutConfig(thought_penalty=penalty)
