"""The reward terms that are not the environment's."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.rewards import (
    Format,
    Grounding,
    Overlong,
    PlayedTurn,
    RewardTerm,
    Truth,
    evaluate,
)
from ragen_pl.types import FormatFault

TURN = PlayedTurn(
    number=0,
    observation="",
    response="",
    thought="",
    actions=(),
    format_fault=None,
    num_tokens=1,
    max_tokens=32,
    env_reward=2.0,
    next_observation="",
    has_ended=False,
    success=False,
    thought_correct=None,
    thought_grounding=None,
    state=None,
    next_state=None,
)


@dataclass(frozen=True)
class Answer(RewardTerm):
    """A user's term that returns what it is told to."""

    given: Callable[[], Any]

    def __call__(self, turn: PlayedTurn) -> Any:
        return self.given()


@pytest.mark.parametrize(
    ("length", "term"), [(1, 0.0), (24, 0.0), (26, -0.125), (28, -0.25), (32, -0.5), (40, -0.5)]
)
def test_the_penalty_rises_over_the_buffer(length: int, term: float) -> None:
    turn = replace(TURN, num_tokens=length)
    assert Overlong(buffer=8, penalty=-0.5)(turn) == pytest.approx(term)


@given(st.integers(0, 99), st.integers(1, 40), st.integers(41, 60))
def test_a_longer_response_never_pays_less_nor_more_than_the_penalty(
    length: int, buffer: int, limit: int
) -> None:
    """By DAPO's eq. 13: nothing before the buffer, a straight line in it, all beyond."""
    overlong = Overlong(buffer, penalty=-0.5)
    term, longer = (
        overlong(replace(TURN, num_tokens=n, max_tokens=limit)) for n in (length, length + 1)
    )
    assert -0.5 <= longer <= term <= 0
    assert term - longer <= 0.5 / buffer + 1e-12
    assert (term == 0) == (length <= limit - buffer)
    assert (term == -0.5) == (length >= limit)


def test_terms_add_up_by_name_and_are_absent_where_they_do_not_apply() -> None:
    terms = {"form": Format(-0.2), "said": Truth(-0.5), "long": Overlong(4, -1.0)}
    assert evaluate(terms, TURN) == {"env": 2.0, "form": 0.0, "long": 0.0}
    bad = replace(TURN, format_fault=FormatFault.CUT_OFF, thought_correct=False, num_tokens=32)
    assert evaluate(terms, bad) == {"env": 2.0, "form": -0.2, "said": -0.5, "long": -1.0}
    assert evaluate(terms, replace(TURN, thought_correct=True))["said"] == 0.0
    assert list(evaluate({}, TURN)) == ["env"]


def test_grounding_is_a_penalty_for_what_does_not_hold() -> None:
    for share, term in ((0.0, -0.4), (0.75, -0.1), (1.0, 0.0)):
        assert Grounding(0.4)(replace(TURN, thought_grounding=share)) == pytest.approx(term)
    assert Grounding(0.4)(TURN) is None
    assert Grounding(0.0)(replace(TURN, thought_grounding=0.5)) == 0.0
    for coef in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="coef is"):
            Grounding(coef)


def test_null_leaves_a_term_out() -> None:
    assert RolloutConfig().reward_terms == {"format": Format(-0.1)}
    assert RolloutConfig(rewards={"format": None, "a": Truth()}).reward_terms == {"a": Truth()}


@pytest.mark.parametrize("name", ["env", "", "a b", "a/b", "a.b"])
def test_names_that_cannot_be_logged_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"rollout\.rewards"):
        RolloutConfig(rewards={name: Format()})


@pytest.mark.parametrize("penalty", [0.0, 1.0, math.nan, -math.inf])
@pytest.mark.parametrize("kind", [Format, Truth, lambda penalty: Overlong(1, penalty)])
def test_a_penalty_is_negative_and_finite(kind: Callable[..., Any], penalty: float) -> None:
    with pytest.raises(ValueError, match=r"penalty is .* negative and finite"):
        kind(penalty=penalty)


def test_a_buffer_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="buffer is 0"):
        Overlong(buffer=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e19, "much", [1.0]])
def test_a_value_that_is_no_finite_number_is_the_terms_fault(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"rewards\.mine \(Answer\) returned .* finite number"):
        evaluate({"mine": Answer(lambda: value)}, TURN)


def test_an_error_is_the_terms_with_its_place() -> None:
    def fail() -> float:
        raise KeyError("boxes")

    with pytest.raises(
        ConfigError, match=r"rewards\.mine \(Answer\) raised KeyError: 'boxes'"
    ) as e:
        evaluate({"mine": Answer(fail)}, TURN)
    assert "if a checkpoint was saved, --ckpt_path last goes on" in str(e.value)
    assert "test_rewards.py:" in str(e.value)


def test_a_term_that_did_not_ask_for_states_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"turn\.state and next_state need needs_states = True"):
        evaluate({"mine": Answer(lambda: TURN.state["boxes"])}, TURN)  # type: ignore[index]


def test_of_a_wrong_signature_no_line_of_the_library_is_shown() -> None:
    class Two(RewardTerm):
        def __call__(self, turn: PlayedTurn, env: TextEnv) -> float:  # type: ignore[override]
            return 0.0

    with pytest.raises(ConfigError, match=r"missing 1 required .* 'env'\n"):
        evaluate({"mine": Two()}, TURN)


@pytest.mark.parametrize("term", [Format(), Truth(), Grounding(), Overlong(3)])
def test_terms_can_be_sent_to_other_processes(term: RewardTerm) -> None:
    assert pickle.loads(pickle.dumps(term)) == term
