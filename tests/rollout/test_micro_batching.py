"""Micro-batches: every row once, within budget, rows of a prompt together where that saves."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.rollout.micro_batching import length_buckets, micro_batches, prompt_buckets
from ragen_pl.rollout.packing import token_batch
from ragen_pl.types import TokenBatch, TokenRow

LONG, OTHER = tuple(range(1, 21)), tuple(range(31, 51))
"""Prompts of twenty tokens."""


def batch(rows: list[tuple[tuple[int, ...], int]]) -> TokenBatch:
    """Return rows, each a prompt and a response of so many tokens."""
    return token_batch(
        [TokenRow((*p, *[60] * n), (*[False] * len(p), *[True] * n)) for p, n in rows]
    )


def chosen_rows(tokens: TokenBatch, budget: int, most_left: float | None) -> list[list[int]]:
    everyone = torch.ones(len(tokens), dtype=torch.bool)
    found = list(micro_batches(tokens, everyone, budget, most_left))
    for rows, part in found:
        assert part.input_ids.shape == (len(rows), int(tokens.lengths[rows].max()))
        assert torch.equal(part.input_ids, tokens.input_ids[rows][:, : part.input_ids.shape[1]])
    return [rows.tolist() for rows, _ in found]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_length_buckets_hold_every_row_once_within_budget(lengths: list[int], budget: int) -> None:
    sizes = torch.tensor(lengths)
    parts = list(length_buckets(sizes, budget))
    assert sorted(torch.cat(parts).tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * int(sizes[part].max()) <= budget


prompts_and_lengths = st.lists(
    st.tuples(st.sampled_from([(), (1,), (1, 2, 3, 4), LONG, OTHER]), st.integers(1, 30)),
    min_size=1,
    max_size=40,
)


@given(prompts_and_lengths, st.integers(1, 300), st.sampled_from([0.0, 0.6, 0.8, 1.0]))
def test_prompt_buckets_hold_every_row_once_within_budget(
    rows: list[tuple[tuple[int, ...], int]], budget: int, most_left: float
) -> None:
    prompts = [prompt for prompt, _ in rows]
    lengths = [len(prompt) + length for prompt, length in rows]
    buckets = prompt_buckets(prompts, lengths, budget, most_left)
    assert sorted(row for bucket in buckets for row in bucket.rows) == list(range(len(rows)))
    for bucket in buckets:
        assert bucket.prompts == tuple(prompts[row] for row in bucket.rows)
        whole = len(bucket.rows) * max(bucket.lengths)
        distinct = set(bucket.prompts)
        rest = max(lengths[row] - len(prompts[row]) for row in bucket.rows)
        shared = len(distinct) * max(map(len, distinct)) + len(bucket.rows) * rest
        tokens = shared if shared <= most_left * whole else whole
        assert bucket.computed_tokens(most_left) == tokens
        assert len(bucket.rows) == 1 or tokens <= budget


def test_rows_of_a_prompt_are_together_in_even_parts() -> None:
    """Two groups of eight: 20 + 8 · 5 tokens fit into 64; by length, two whole rows of 25 would."""
    tokens = batch([((LONG, OTHER)[row % 2], 5) for row in range(16)])
    assert chosen_rows(tokens, 64, 0.8) == [[*range(0, 16, 2)], [*range(1, 16, 2)]]
    # 20 + 5 · 5 fit into 47, and eight are cut evenly.
    parts = chosen_rows(tokens, 47, 0.8)
    assert parts == [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]
    assert chosen_rows(tokens, 64, None) == [[row, row + 1] for row in range(0, 16, 2)]


def test_small_groups_are_joined() -> None:
    tokens = batch([(LONG, 5)] * 2 + [(OTHER, 5)] * 2)
    assert chosen_rows(tokens, 60, 0.8) == [[0, 1, 2, 3]]
    assert chosen_rows(tokens, 59, 0.8) == [[0, 1], [2, 3]]


def test_rows_are_cut_by_length_where_prompts_save_nothing() -> None:
    tokens = batch([((row,), 5 + row % 3) for row in range(12)])
    assert chosen_rows(tokens, 30, 0.8) == chosen_rows(tokens, 30, None)
    nothing = batch([])
    assert chosen_rows(nothing, 30, 0.8) == []
