"""Log-probs of every continuation after every prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.models.kernels.attention import uses_additive_mask
from ragen_pl.models.kernels.kv_cache import RaggedCache, pad_left
from ragen_pl.ops.losses import log_prob_and_entropy, to_float32
from ragen_pl.types import to_device

Ids = tuple[int, ...]


@torch.no_grad()
def cross_score(
    model: PreTrainedModel,
    prefixes: Sequence[Ids],
    continuations: Sequence[Ids],
    *,
    temperature: float = 1.0,
    token_budget: int = 4096,
) -> Tensor:
    """Return (R, P) log p(continuation i | prefix j), summed over the continuation's tokens.

    A prefix is read once into a key-value cache, and its row is copied for a batch of continuations
    of similar length at a time. The prefixes are divided among the ranks. Every rank must call it
    with equal arguments; all run the same number of forwards and return the whole table.

    Args:
        model: The causal language model; it must take an explicit 4-dimensional mask.
        prefixes: P token sequences of at least two tokens.
        continuations: R token sequences of at least one token.
        temperature: The temperature at which the continuations were sampled.
        token_budget: Upper bound of padded tokens per batch, the cached ones included; a batch has
            at least one row.
    """
    assert all(len(prefix) >= 2 for prefix in prefixes), "a prefix must have two tokens"
    assert all(continuations), "a continuation must not be empty"
    if not prefixes or not continuations:
        return torch.zeros(len(continuations), len(prefixes))
    by_length = sorted(range(len(continuations)), key=lambda i: len(continuations[i]))
    longest = max(map(len, prefixes)) + max(map(len, continuations))
    size = min(max(1, token_budget // longest), len(continuations))
    batches = [by_length[first : first + size] for first in range(0, len(by_length), size)]
    columns: dict[int, Tensor] = {}
    for first in range(0, len(prefixes), world_size()):
        # Ranks score equally many prefixes: one that is past the end scores the last again.
        j = min(first + rank(), len(prefixes) - 1)
        *read, last = prefixes[j]
        cache = RaggedCache(1, longest, model.device, uses_additive_mask(model))
        _forward(model, cache, [read])
        cache.close_block(np.array([len(read)]))
        cache.reorder(np.zeros(size, np.int64))
        columns[j] = torch.zeros(len(continuations))
        for batch in batches:
            rows = [continuations[i] for i in batch]
            # The block stays open, so that the next batch overwrites it.
            cache.active_rows = slice(0, len(rows))
            states = _forward(model, cache, [[last, *row[:-1]] for row in rows])
            columns[j][batch] = _sequence_log_probs(model, states, rows, temperature)
    scored = {j: column for part in gather_objects(columns) for j, column in part.items()}
    return torch.stack([scored[j] for j in range(len(prefixes))], dim=1)


def _forward(model: PreTrainedModel, cache: RaggedCache, rows: Sequence[Sequence[int]]) -> Tensor:
    """Return the last hidden states (rows, width, d) of a left-padded block after the cache."""
    ids, counts = pad_left(rows)
    positions, mask = cache.open_block(ids.shape[1], counts)
    states: Tensor = model.base_model(
        input_ids=to_device(ids, model.device),
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return states


def _sequence_log_probs(
    model: PreTrainedModel, states: Tensor, rows: Sequence[Ids], temperature: float
) -> Tensor:
    """Return each row's summed log-prob, (rows,) on the CPU, after left-padded states."""
    project = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    sums = []
    for hidden, row in zip(states, rows, strict=True):  # row by row: a vocabulary can be large
        logits = to_float32(project(hidden[-len(row) :])) / temperature
        targets = to_device(torch.tensor(row), logits.device)
        sums.append(log_prob_and_entropy(logits, targets)[0].sum())
    return torch.stack(sums).cpu()
