"""Pieces of text for the embedded tokenizer."""

from __future__ import annotations

import random

from ragen_pl.envs.adapters.pieces import frequent_pieces


def test_frequent_lines_and_words_become_pieces_and_rare_numbers_do_not() -> None:
    rng = random.Random(0)
    texts = [f"Add the numbers.\n{rng.randrange(10**6)} and {n}" for n in range(100)]
    pieces = frequent_pieces(texts)
    assert pieces[0] == "Add the numbers.\n"
    assert " and" in pieces
    assert not any(piece.strip().isdigit() and len(piece.strip()) > 2 for piece in pieces)


def test_there_are_at_most_four_hundred() -> None:
    texts = [" ".join(f"word{n}" for n in range(900))] * 3
    assert len(frequent_pieces(texts)) == 400
    assert frequent_pieces([]) == []
