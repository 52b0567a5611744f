"""Micro-batches: every row once, within budget, rows of a prompt together where that saves."""

from __future__ import annotations

import time

import torch
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.models.kernels.shared_prompts import PromptSharing, SharedPrompts
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


def sharing(threads: int = 1, most_left: float = 0.8) -> PromptSharing:
    return PromptSharing(most_left, threads)


def chosen_rows(tokens: TokenBatch, budget: int, shares: bool, threads: int = 1) -> list[list[int]]:
    everyone = torch.ones(len(tokens), dtype=torch.bool)
    found = list(micro_batches(tokens, everyone, budget, sharing(threads) if shares else None))
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


def computed(part: TokenBatch, most_left: float) -> int:
    """Return the tokens that a backbone computes of rows."""
    positions = (part.loss_mask.nonzero() @ torch.tensor([part.input_ids.shape[1], 1])) - 1
    shared = None
    if len(positions):
        shared = SharedPrompts.of(part.input_ids, positions, most_left)
    return part.input_ids.numel() if shared is None else shared.num_tokens


@given(
    prompts_and_lengths,
    st.integers(1, 300),
    st.sampled_from([0.0, 0.6, 0.8, 1.0]),
    st.sampled_from([1, 2, 16]),
    st.booleans(),
)
def test_prompt_buckets_hold_every_row_once_and_no_backbone_computes_more_than_the_budget(
    rows: list[tuple[tuple[int, ...], int]],
    budget: int,
    most_left: float,
    threads: int,
    first_is_not_learned: bool,
) -> None:
    tokens, how = batch(rows), sharing(threads, most_left)
    prompts = [prompt for prompt, _ in rows]
    if first_is_not_learned:
        tokens.loss_mask[0] = False
        prompts[0] = ()
    else:  # a first token cannot be sampled
        tokens.loss_mask[:, 0] = False
        prompts = [prompt or (60,) * (length > 1) for prompt, length in rows]
    buckets = prompt_buckets(prompts, tokens.lengths.tolist(), budget, how)
    assert sorted(row for bucket in buckets for row in bucket.rows) == list(range(len(rows)))
    for bucket in buckets:
        assert bucket.fits(budget, how)
        part = tokens.rows(torch.tensor(bucket.rows))
        assert bucket.whole_tokens == len(part) * int(part.lengths.max())
        if len(part) == 1:
            continue
        assert bucket.computed_tokens(how) <= budget
        assert bucket.whole_tokens <= 1.5 * budget
        of_threads = [
            part.rows(index).cut(int(part.lengths[index].max()))
            for index in torch.arange(len(part)).tensor_split(min(threads, len(part)))
        ]
        found = sum(computed(own, most_left) for own in of_threads)
        assert found <= bucket.computed_tokens(how)


def test_rows_of_a_prompt_are_together_in_even_parts() -> None:
    """Two groups of eight, whose whole rows may have half as many tokens again as the budget."""
    tokens = batch([((LONG, OTHER)[row % 2], 5) for row in range(16)])
    whole = [[*range(0, 16, 2)], [*range(1, 16, 2)]]
    assert chosen_rows(tokens, 134, True) == whole  # 8 · 25 = 200 tokens of whole rows
    halves = [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]
    assert chosen_rows(tokens, 133, True) == halves
    assert chosen_rows(tokens, 134, False)[0] == [0, 1, 2, 3, 4]


def test_every_thread_reads_the_prompt() -> None:
    tokens = batch([(LONG, 30)] * 4)  # 20 + 4 · 30 tokens, 40 + 4 · 30 with two threads
    assert chosen_rows(tokens, 140, True) == [[0, 1, 2, 3]]
    assert chosen_rows(tokens, 140, True, threads=2) == chosen_rows(tokens, 140, False)
    assert chosen_rows(tokens, 160, True, threads=2) == [[0, 1, 2, 3]]


def test_threads_have_equally_many_rows() -> None:
    """Seven rows would fit, and of five one thread would have three."""
    tokens = batch([(LONG * 5, 20)] * 16)
    parts = chosen_rows(tokens, 560, True, threads=2)  # 7 · 120 tokens of whole rows
    assert [len(part) for part in parts] == [6, 6, 4]
    assert [len(part) for part in chosen_rows(tokens, 560, True)] == [6, 5, 5]


def test_small_groups_are_joined() -> None:
    tokens = batch([(LONG, 5)] * 3 + [(OTHER, 5)] * 3)
    assert chosen_rows(tokens, 100, True) == [[0, 1, 2, 3, 4, 5]]
    assert chosen_rows(tokens, 99, True) == [[0, 1, 2], [3, 4, 5]]


def test_a_row_without_a_learned_token_ends_the_sharing() -> None:
    """As a backbone does; the longest prompts come first."""
    tokens = batch([(LONG * 5, 5)] * 4 + [((), 20)] + [(OTHER[:10], 5)] * 2)
    tokens.loss_mask[4] = False
    assert chosen_rows(tokens, 400, True) == [[0, 1, 2, 3], [4, 5, 6]]


def test_rows_are_cut_by_length_where_prompts_save_nothing() -> None:
    tokens = batch([((row,), 5 + row % 3) for row in range(12)])
    assert chosen_rows(tokens, 30, True) == chosen_rows(tokens, 30, False)
    assert chosen_rows(batch([]), 30, True) == []


def test_many_rows_of_a_long_prompt_are_cut_at_once() -> None:
    """Every row is a micro-batch of its own. Each number of parts was once cut to be tested, which
    took seconds."""
    start = time.process_time()
    assert len(prompt_buckets([LONG * 200] * 4000, [4100] * 4000, 4096, sharing())) == 4000
    assert time.process_time() - start < 2
