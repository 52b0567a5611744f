"""Batches cut into micro-batches, by length or by the prompts that rows begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from ragen_pl.ops.shape_buckets import round_down
from ragen_pl.types import PolicyBatch, TokenBatch, TrainingBatch

Batch = TypeVar("Batch", TokenBatch, PolicyBatch, TrainingBatch)
Prompt = tuple[int, ...]


def micro_batches(
    batch: Batch, chosen: Tensor, token_budget: int, most_left: float | None = None
) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the chosen rows as micro-batches: (row indices, these rows cut to the longest).

    Args:
        batch: Batch of B rows.
        chosen: (B,) bool: the rows to yield.
        token_budget: As in ``length_buckets``.
        most_left: As in ``prompt_buckets``, for networks that compute equal prompts once; None for
            others.
    """
    index = torch.nonzero(chosen)[:, 0]
    lengths = batch.lengths[index].cpu()
    parts = list(length_buckets(lengths, token_budget))
    if most_left is not None:
        prompts = _prompts(batch.tokens, index)
        buckets = prompt_buckets(prompts, lengths.tolist(), token_budget, most_left)
        padded = sum(len(rows) * int(lengths[rows].max()) for rows in parts)
        if sum(bucket.computed_tokens(most_left) for bucket in buckets) < padded:
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
    prompts: tuple[Prompt, ...]
    """What each of them begins with."""
    lengths: tuple[int, ...]
    """Tokens of each, its prompt included."""

    def __add__(self, other: PromptBucket) -> PromptBucket:
        prompts, lengths = self.prompts + other.prompts, self.lengths + other.lengths
        return PromptBucket(self.rows + other.rows, prompts, lengths)

    def __getitem__(self, part: slice) -> PromptBucket:
        return PromptBucket(self.rows[part], self.prompts[part], self.lengths[part])

    def computed_tokens(self, most_left: float) -> int:
        """Return the tokens to compute, padding included: those of prompts once, if at most such a
        fraction of all is then left."""
        whole, prompts = len(self.rows) * max(self.lengths), set(self.prompts)
        rests = [n - len(prompt) for n, prompt in zip(self.lengths, self.prompts, strict=True)]
        shared = len(prompts) * max(map(len, prompts)) + len(rests) * max(rests)
        return shared if shared <= most_left * whole else whole


def prompt_buckets(
    prompts: Sequence[Prompt], lengths: Sequence[int], token_budget: int, most_left: float
) -> list[PromptBucket]:
    """Cut rows into micro-batches of few prompts each, whose tokens are computed once.

    Rows of one prompt that do not fit into one are cut evenly, since threads share those of each.

    Args:
        prompts: What each row begins with.
        lengths: Tokens of each row, its prompt included.
        token_budget: Upper bound of a micro-batch's computed tokens; a row that has more is a
            micro-batch of its own.
        most_left: Largest fraction of a micro-batch's tokens that may be left for its prompts to be
            computed once.

    Returns:
        Micro-batches in which every row is exactly once.
    """

    def fits(bucket: PromptBucket) -> bool:
        return len(bucket.rows) == 1 or bucket.computed_tokens(most_left) <= token_budget

    of_prompt: dict[Prompt, list[int]] = {}
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        of_prompt.setdefault(prompts[row], []).append(row)
    buckets: list[PromptBucket] = []
    for prompt, rows in of_prompt.items():
        of_rows = (prompt,) * len(rows), tuple(lengths[row] for row in rows)
        for part in _cut_evenly(PromptBucket(tuple(rows), *of_rows), fits):
            if buckets and fits(buckets[-1] + part):
                buckets[-1] += part
            else:
                buckets.append(part)
    return buckets


def _cut_evenly(bucket: PromptBucket, fits: Callable[[PromptBucket], bool]) -> list[PromptBucket]:
    """Cut a bucket into the fewest parts of equal numbers of rows, up to one, that fit."""
    rows = len(bucket.rows)
    for number in range(1, rows + 1):
        ends = [rows * end // number for end in range(number + 1)]
        parts = [bucket[slice(*part)] for part in pairwise(ends)]
        if all(map(fits, parts)):
            break
    return parts


def _prompts(tokens: TokenBatch, index: Tensor) -> list[Prompt]:
    """Return what the rows at an index have before their first learned token."""
    ids, first = tokens.input_ids[index], tokens.loss_mask[index].int().argmax(1)
    return [tuple(row[:end]) for row, end in zip(ids.tolist(), first.tolist(), strict=True)]
