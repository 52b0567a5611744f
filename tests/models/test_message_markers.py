"""The encoding of plain texts and of contexts."""

from __future__ import annotations

import pytest

from ragen_pl.models.embedded import build_tokenizer
from ragen_pl.models.message_markers import encode_segments, encode_texts
from tests.support.templates import make_tokenizer

TEXTS = ["State:\n#_P", "", "<|im_end|> and <think>", " Up || Down", "√" * 30]


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_texts_are_encoded_as_the_tokenizer_does_without_special_tokens(
    trained: bool, is_cut: bool
) -> None:
    """Also where the tokenizer was saved with a maximum length and padding."""
    tokenizer = make_tokenizer(None) if trained else build_tokenizer(["State:\n", "Up", "Down"])
    expected = tokenizer(TEXTS, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    if is_cut:
        tokenizer.backend_tokenizer.enable_truncation(2)
        tokenizer.backend_tokenizer.enable_padding(length=8)
    assert encode_texts(tokenizer, TEXTS) == expected
    assert encode_texts(tokenizer, []) == []
    special = tokenizer.all_special_tokens[0]
    (ids,) = encode_texts(tokenizer, [special])
    assert tokenizer.convert_tokens_to_ids(special) not in ids
    assert tokenizer.encode(special, add_special_tokens=False) != ids, "the tokenizer's own way"


def test_adjacent_texts_of_a_context_are_encoded_as_one() -> None:
    tokenizer = make_tokenizer(None)
    (whole,) = encode_texts(tokenizer, ["State: #_P"])
    assert encode_segments(tokenizer, [(7, "Sta", "te: #_P", 8, 9), (8,)]) == [
        (7, *whole, 8, 9),
        (8,),
    ]
