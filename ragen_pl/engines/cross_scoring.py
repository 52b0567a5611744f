"""Score many continuations under many prefixes, reading every prefix once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.distributed import gather_objects, rank, world_size
from ragen_pl.engines.ragged_cache import RaggedCache, pad_left

Ids = tuple[int, ...]

_BLOCK = 128
"""Tokens of continuations read side by side: each attends within its own, but the mask covers the
square of the block."""


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

    Prefixes are read once into a key-value cache. Behind it the continuations stand side by side
    in one row, each hidden from the others by the mask, so the cache is not copied for them. The
    ranks share the prefixes; every rank must call it with equal arguments, runs the same number of
    forwards and gets the whole table.

    Args:
        model: The causal language model; it must take an explicit 4-dimensional mask.
        prefixes: P token sequences of at least two tokens.
        continuations: R token sequences of at least one token.
        temperature: The one the continuations were sampled at.
        token_budget: Upper bound of padded tokens per forward; a single prefix or continuation
            may exceed it.
    """
    assert all(len(prefix) >= 2 for prefix in prefixes), "a prefix must have two tokens"
    assert all(len(part) >= 1 for part in continuations), "a continuation must not be empty"
    if not prefixes or not continuations:
        return torch.zeros(len(continuations), len(prefixes))
    blocks = list(_blocks(continuations))
    widest = max(sum(len(continuations[i]) for i in block) for block in blocks)
    longest = max(len(prefix) for prefix in prefixes)
    by_length = sorted(range(len(prefixes)), key=lambda j: len(prefixes[j]))
    # Every rank takes as many, the last ones twice where they do not come out even.
    share = -(-len(prefixes) // world_size())
    own = [
        by_length[min(k, len(prefixes) - 1)]
        for k in range(rank(), share * world_size(), world_size())
    ]
    at_once = max(1, token_budget // max(longest, widest))
    columns: dict[int, Tensor] = {}
    for first in range(0, share, at_once):
        chosen = own[first : first + at_once]
        cache = _read([prefixes[j] for j in chosen], model, longest + widest)
        last = torch.tensor([prefixes[j][-1] for j in chosen])
        scored = [
            _score_block(model, cache, last, [continuations[i] for i in block], temperature)
            for block in blocks
        ]
        columns |= dict(zip(chosen, torch.cat(scored, dim=1), strict=False))
    everyone = {j: column for part in gather_objects(columns) for j, column in part.items()}
    return torch.stack([everyone[j] for j in range(len(prefixes))], dim=1)


def _blocks(continuations: Sequence[Ids]) -> Iterator[list[int]]:
    """Cut the continuations into runs of at most ``_BLOCK`` tokens, longer ones alone."""
    block: list[int] = []
    width = 0
    for index, part in enumerate(continuations):
        if block and width + len(part) > _BLOCK:
            yield block
            block, width = [], 0
        block.append(index)
        width += len(part)
    yield block


def _read(prefixes: Sequence[Ids], model: PreTrainedModel, room: int) -> RaggedCache:
    """Read all but the last token of each prefix, left-padded to a block."""
    cache = RaggedCache(len(prefixes), room, model.device)
    ids, counts = pad_left([prefix[:-1] for prefix in prefixes])
    positions, mask = cache.open_block(ids.shape[1], counts)
    _states(model, cache, ids, positions, mask)
    cache.close_block(counts)
    return cache


def _score_block(
    model: PreTrainedModel,
    cache: RaggedCache,
    last: Tensor,
    continuations: Sequence[Ids],
    temperature: float,
) -> Tensor:
    """Return (C, number of continuations) log-probs behind the C cached prefixes.

    What is read in the place of token k of a continuation is the token before it, for the first
    the prefix's ``last``: so the states stand where the tokens they predict are. The block is not
    closed: the next one overwrites it.
    """
    lengths = torch.tensor([len(part) for part in continuations])
    width, count = int(lengths.sum()), len(last)
    segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    offset = torch.arange(width) - (lengths.cumsum(0) - lengths)[segment]
    targets = torch.tensor([token for part in continuations for token in part])
    ids = targets.roll(1).expand(count, width)
    ids = torch.where(offset == 0, last[:, None], ids)
    cache.open_block(width, torch.full((count,), width))
    positions = cache.lengths[:, None] + offset
    states = _states(model, cache, ids, positions, _branching_mask(cache, segment, offset))
    project = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    out = torch.zeros(count, len(lengths))
    targets = targets.to(states.device)
    for row, hidden in enumerate(states):  # one row at a time: a vocabulary can be large
        logits = project(hidden).float() / temperature
        log_probs = logits.gather(1, targets[:, None])[:, 0] - torch.logsumexp(logits, dim=1)
        out[row].index_add_(0, segment, log_probs.cpu())
    return out


def _branching_mask(cache: RaggedCache, segment: Tensor, offset: Tensor) -> Tensor:
    """Show (C, 1, W, reach): the whole prefix, and of the block one's own continuation so far.

    Slot 0 is the cache's spare one, slots 1 … length hold the prefix, the block comes behind.
    """
    width = len(segment)
    within = (segment[:, None] == segment) & (offset[:, None] >= offset)
    slot = torch.arange(cache.reach)[None]
    place = slot - 1 - cache.lengths[:, None]
    in_prefix = (slot >= 1) & (place < 0)
    in_block = (place >= 0) & (place < width)
    block = within[:, place.clamp(0, width - 1)].transpose(0, 1)
    return (in_prefix[:, None] | (in_block[:, None] & block))[:, None]


def _states(
    model: PreTrainedModel, cache: RaggedCache, ids: Tensor, positions: Tensor, mask: Tensor
) -> Tensor:
    device = model.device
    states: Tensor = model.base_model(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        position_ids=positions.to(device),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return states
