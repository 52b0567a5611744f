"""Texts of tokens make up the response, whatever the tokenizer does at the borders of words."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.teachers.world_model import LEADS_TO, announced_tokens, announcement
from ragen_pl.rollout.token_texts import token_texts
from ragen_pl.types import Completion
from tests.support.doubles import make_turn
from tests.support.toy_env import PROMPTS, make_learner


def make_chat() -> Chat:
    module = make_learner()
    module.configure_model()
    return Chat(PROMPTS, module.language.tokenizer, module.language.markers, 2)


CHAT = make_chat()


def completion(ids: tuple[int, ...]) -> Completion:
    return Completion(ids, (-0.5,) * len(ids), (0.5,) * len(ids), stopped=True)


def bytes_chat() -> Chat:
    """Return a chat whose tokens are single bytes, as those of the largest models can be."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    chat = make_chat()
    chat.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    return chat


BYTES = bytes_chat()


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.integers(0, 6))
def test_texts_of_byte_tokens_make_up_the_response(text: str, cut: int) -> None:
    ids = tuple(BYTES.tokenizer(text)["input_ids"])
    ids = ids[: max(0, len(ids) - cut)]  # a length limit may split the last character
    response = BYTES.decode(ids)
    texts = token_texts(completion(ids), response, BYTES)
    assert len(texts) == len(ids)
    assert "".join(texts) == response


def test_the_last_token_of_a_character_has_it() -> None:
    ids = tuple(BYTES.tokenizer("a√b🧊")["input_ids"])
    assert token_texts(completion(ids), "a√b🧊", BYTES) == ["a", "", "", "√", "b", "", "", "", "🧊"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, CHAT.tokenizer.vocab_size - 1), max_size=30))
def test_texts_of_the_embedded_models_tokens_make_up_the_response(ids: list[int]) -> None:
    response = CHAT.decode(ids)
    texts = token_texts(completion(tuple(ids)), response, CHAT)
    assert len(texts) == len(ids)
    assert "".join(texts) == response


def test_the_stop_token_has_no_text() -> None:
    (ids,) = CHAT.encode(["lit"])
    texts = token_texts(completion((*ids, CHAT.markers.end)), "lit", CHAT)
    assert texts == ["lit", ""]


def test_a_space_that_a_token_loses_alone_is_counted_in_the_announcement() -> None:
    """As tokens of Llama 2 do; the announcement seemed longer, and a prediction was not learned."""
    words = ["▁Left", "▁leads", "▁to", ":", "\n", "▁here", "▁", "||", *map(chr, range(33, 124))]
    tokenizer = Tokenizer(models.Unigram([("?", 0.0), *((word, -1.0) for word in words)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    chat = make_chat()
    chat.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)  # type: ignore[no-untyped-call]
    written = f"{announcement(('Left',))}here here"
    ids = tuple(chat.tokenizer(written)["input_ids"])
    turn = replace(make_turn(response=chat.decode(ids)), completion=completion(ids))
    assert "".join(token_texts(turn.completion, turn.response, chat)) == turn.response
    count = announced_tokens(turn, chat)
    assert chat.decode(ids[:count]).endswith(LEADS_TO)
    assert "here" not in chat.decode(ids[:count])
