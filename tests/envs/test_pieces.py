"""Pieces of text for the embedded tokenizer."""

from __future__ import annotations

import random
from itertools import product

from ragen_pl.envs.pieces import frequent_pieces


def test_frequent_lines_and_words_become_pieces_and_rare_numbers_do_not() -> None:
    rng = random.Random(0)
    texts = [f"Add the numbers.\n{rng.randrange(10**6)} and {n}" for n in range(100)]
    pieces = frequent_pieces(texts)
    assert pieces[0] == "Add the numbers.\n"
    assert " and" in pieces
    assert not any(piece.strip().isdigit() and len(piece.strip()) > 2 for piece in pieces)


def test_a_number_is_a_piece_in_columns_only() -> None:
    pieces = frequent_pieces(["a 7, b\n   16    2", "c 7, d\n   16    4"])
    assert "   16" in pieces
    assert not any("7" in piece for piece in pieces if "\n" not in piece)


def test_there_are_at_most_four_hundred() -> None:
    words = ("".join(letters) for letters in product("abcdefghij", repeat=3))
    texts = [" ".join(words)] * 3
    assert len(frequent_pieces(texts)) == 400
    assert frequent_pieces([]) == []
