"""Encoding is lossless, and the tokens of a thought are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.models.embedded import END, USER, build_tokenizer, read_markers
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.prompts import Prompts
from tests.support.words import vocabulary

MOVES = ("Up", "Down", "Left", "Right")


def chat(think: bool = True) -> Chat:
    prompts = Prompts(think=think)
    tokenizer = build_tokenizer(vocabulary(prompts, Sokoban(), 3))
    return Chat(prompts, tokenizer, read_markers(tokenizer), 3)


CHAT = chat()


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.booleans())
def test_thought_tokens_are_those_before_the_closing_tag(thought: str, is_whole: bool) -> None:
    """The embedded tokenizer has one piece for both tags, so the thought ends on a token."""
    text = CHAT.response_text(thought, ("Up",)) if is_whole else thought
    (ids,) = CHAT.encode([text])
    count = CHAT.count_thought_tokens((*ids, CHAT.markers.end))
    parsed = CHAT.parse(CHAT.decode(ids), MOVES)
    assert CHAT.decode(ids[:count]).strip() == parsed.thought
    assert bool(count) == bool(is_whole and thought) or "</think>" in thought


def test_a_token_that_straddles_thought_and_tag_counts_as_tag() -> None:
    prompts = Prompts()
    tokenizer = build_tokenizer(["go up", ".</", "think><answer>"])
    straddling = Chat(prompts, tokenizer, read_markers(tokenizer), 3)
    (ids,) = straddling.encode(["go up.</think><answer>Up</answer>"])
    assert straddling.count_thought_tokens(ids) == 1
    assert chat(think=False).count_thought_tokens(ids) == 0


@given(st.text(st.characters(codec="utf-8")))
def test_tokenizer_is_lossless(text: str) -> None:
    (ids,) = CHAT.encode([text])
    assert CHAT.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_markers_written_in_a_text_stay_text() -> None:
    (ids,) = CHAT.encode([f"{USER} hi {END}"])
    assert not set(ids) & {*CHAT.markers.user, CHAT.markers.end}
    assert CHAT.decode(ids) == f"{USER} hi {END}"


@pytest.mark.parametrize("think", [True, False])
def test_experts_answers_come_back_as_they_were(think: bool) -> None:
    talk = chat(think)
    (ids,) = talk.encode([talk.response_text("P(1,1) Left Up", ("Left", "Up"))])
    parsed = talk.parse(talk.decode(ids), MOVES)
    assert parsed.actions == ("Left", "Up")
    assert parsed.is_valid
    assert len(ids) <= 8
