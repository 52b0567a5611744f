"""Batches cut into micro-batches, by length or by the prompts that rows begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ragen_pl.models.kernels.shared_prompts import PromptSharing
from ragen_pl.ops.shape_buckets import round_down
from ragen_pl.types import PolicyBatch, TokenBatch, TrainingBatch

Batch = TypeVar("Batch", TokenBatch, PolicyBatch, TrainingBatch)
Prompt = tuple[int, ...]

_MOST_WHOLE = 1.5
"""Largest size of a micro-batch's whole rows, in token budgets: attention holds the keys, values
and scores of each row's prompt, though it is read once."""


def micro_batches(
    batch: Batch, chosen: Tensor, token_budget: int, sharing: PromptSharing | None = None
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the chosen rows as micro-batches: (row indices, these rows cut to the longest).

    They are cut by length, or by prompt, where that leaves fewer tokens to compute.

    Args:
        batch: Batch of B rows.
        chosen: (B,) bool: the rows to yield.
        token_budget: Upper bound of a micro-batch's tokens, padding included, as ``length_buckets``
            and ``prompt_buckets`` count them.
        sharing: How the networks compute equal prompts once; None if they do not.
    """
    index = torch.nonzero(chosen)[:, 0]
    lengths = batch.lengths[index].cpu()
    parts = list(length_buckets(lengths, token_budget))
    if sharing is not None:
        prompts = _prompts(batch.tokens, index)
        buckets = prompt_buckets(prompts, lengths.tolist(), token_budget, sharing)
        padded = sum(len(rows) * int(lengths[rows].max()) for rows in parts)
        if sum(bucket.computed_tokens(sharing) for bucket in buckets) < padded:
            parts = [torch.tensor(bucket.rows) for bucket in buckets]
    for rows in parts:
        at = index[rows.to(index.device)]
        yield at, batch.rows(at).cut(int(lengths[rows].max()))


def length_buckets(lengths: Tensor, token_budget: int) -> Iterator[Tensor]:
    """Cut rows into micro-batches of similar length whose padded size stays within a budget.

    Args:
        lengths: (B,) tokens per row.
        token_budget: Upper bound of the number of rows times the longest row; a row that is longer
            is a micro-batch of its own.

    Yields:
        Row indices, every row exactly once.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    at = 0
    while at < len(order):
        longest = max(1, int(lengths[order[at]]))
        count = rows_within(token_budget, longest)
        yield order[at : at + count]
        at += count


def rows_within(token_budget: int, longest: int) -> int:
    """Return the number of rows of a micro-batch whose longest row is given, rounded down to a
    shape bucket."""
    return round_down(max(1, token_budget // longest))


@dataclass(frozen=True, slots=True)
class PromptBucket:
    """Rows of a micro-batch, those of a prompt together."""

    rows: tuple[int, ...]
    prompts: int
    """Number of distinct prompts."""
    prompt: int
    """Tokens of the longest prompt."""
    rest: int
    """Tokens of the longest rest of a row."""
    length: int
    """Tokens of the longest row."""
    is_shared: bool
    """Whether every row has a prompt."""

    @classmethod
    def of_prompt(cls, prompt: int, lengths: Sequence[int], rows: Sequence[int]) -> PromptBucket:
        """Return rows of one prompt, the longest first.

        Args:
            prompt: Tokens of the prompt.
            lengths: Tokens of all rows.
            rows: Indices of these.
        """
        longest = lengths[rows[0]]
        return cls(tuple(rows), 1, prompt, longest - prompt, longest, prompt > 0)

    def __add__(self, other: PromptBucket) -> PromptBucket:
        """Return both as one, as if they had no prompt in common."""
        return PromptBucket(
            self.rows + other.rows,
            self.prompts + other.prompts,
            max(self.prompt, other.prompt),
            max(self.rest, other.rest),
            max(self.length, other.length),
            self.is_shared and other.is_shared,
        )

    @property
    def whole_tokens(self) -> int:
        """Tokens of whole rows, padding included."""
        return len(self.rows) * self.length

    def computed_tokens(self, sharing: PromptSharing) -> int:
        """Return an upper bound of the tokens to compute, padding included.

        Every thread reads the prompts of its rows, which follow each other.
        """
        reads = min(self.prompts + sharing.threads - 1, len(self.rows))
        shared = reads * self.prompt + len(self.rows) * self.rest
        is_worth_it = self.is_shared and shared <= sharing.most_left * self.whole_tokens
        return shared if is_worth_it else self.whole_tokens

    def fits(self, token_budget: int, sharing: PromptSharing) -> bool:
        """Return whether it is a micro-batch within the budget, or cannot be cut."""
        is_within = self.computed_tokens(sharing) <= token_budget
        is_held = self.whole_tokens <= _MOST_WHOLE * token_budget
        return len(self.rows) == 1 or (is_within and is_held)


def prompt_buckets(
    prompts: Sequence[Prompt], lengths: Sequence[int], token_budget: int, sharing: PromptSharing
) -> list[PromptBucket]:
    """Cut rows into micro-batches of few prompts each, whose tokens are computed once.

    Rows of one prompt that do not fit into one are cut evenly, each part with as many rows for
    every thread, where that is possible.

    Args:
        prompts: What each row has before its first learned token; nothing if it has none.
        lengths: Tokens of each row, its prompt included.
        token_budget: Upper bound of a micro-batch's computed tokens; its whole rows have one and a
            half times as many at most. A row that has more is a micro-batch of its own.
        sharing: How the networks compute equal prompts once.

    Returns:
        Micro-batches in which every row is exactly once.
    """
    of_prompt: dict[Prompt, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        of_prompt.setdefault(prompts[row], []).append(row)
    buckets: list[PromptBucket] = []
    for prompt, rows in of_prompt.items():
        bucket = partial(PromptBucket.of_prompt, len(prompt), lengths)
        for part in _cut_evenly(rows, bucket, token_budget, sharing):
            if buckets and (buckets[-1] + part).fits(token_budget, sharing):
                buckets[-1] += part
            else:
                buckets.append(part)
    return buckets


def _cut_evenly(
    rows: Sequence[int],
    bucket: Callable[[Sequence[int]], PromptBucket],
    token_budget: int,
    sharing: PromptSharing,
) -> Iterator[PromptBucket]:
    """Cut rows of one prompt, the longest first, into the fewest parts that fit, of equal numbers
    of units up to one. A unit has a row for each thread, if so many fit."""
    unit = sharing.threads if bucket(rows[: sharing.threads]).fits(token_budget, sharing) else 1
    units = -(-len(rows) // unit)
    fewest = next(
        parts
        for parts in range(1, units + 1)
        if bucket(rows[: -(-units // parts) * unit]).fits(token_budget, sharing)
    )
    for part in np.array_split(np.arange(units), fewest):
        yield bucket(rows[part[0] * unit : (part[-1] + 1) * unit])


def _prompts(tokens: TokenBatch, index: Tensor) -> list[Prompt]:
    """Return what the rows at an index have before their first learned token; nothing if they have
    none."""
    ids, first = tokens.input_ids[index], tokens.loss_mask[index].int().argmax(1)
    return [tuple(row[:end]) for row, end in zip(ids.tolist(), first.tolist(), strict=True)]
