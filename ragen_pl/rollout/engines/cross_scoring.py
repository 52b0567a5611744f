"""Score many continuations under many prefixes, reading what is shared once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.models.kernels.attention import additive, adds_masks
from ragen_pl.models.kernels.kv_cache import RaggedCache, pad_left
from ragen_pl.types import to_device

Ids = tuple[int, ...]

_PLACES = 128
"""Places of continuations read side by side: each looks only back along its own, but the mask
covers the square of them."""
_ROWS = 16
"""Prefixes of about equal length read side by side: more would be more padding."""


@dataclass(frozen=True, slots=True)
class _Tree:
    """Hold continuations that share their beginnings: one place for each distinct beginning, the
    empty one first. What stands at a place is its last token; it predicts the next ones.

    Args:
        members: Which continuations these are.
        tokens: (W,) at each place; the root's, a prefix's last, is not known here.
        depth: (W,) the length of each beginning.
        visible: (W, W) whether a place (row) sees another (column): itself and what leads to it.
        place: (N,) of what predicts each token of all continuations.
        target: (N,) the token.
        owner: (N,) the number, among the members, of the continuation it belongs to.
    """

    members: list[int]
    tokens: Tensor
    depth: Tensor
    visible: Tensor
    place: Tensor
    target: Tensor
    owner: Tensor

    @classmethod
    def of(cls, members: Sequence[int], continuations: Sequence[Ids]) -> _Tree:
        """Plant the tree of some continuations."""
        places: dict[Ids, int] = {(): 0}
        steps = []
        for owner, member in enumerate(members):
            ids = continuations[member]
            for length, token in enumerate(ids):
                place = places.setdefault(ids[:length], len(places))
                steps.append((place, token, owner))
        visible = torch.eye(len(places), dtype=torch.bool)
        for beginning, place in places.items():  # what leads to a place was entered before it
            if beginning:
                visible[place] |= visible[places[beginning[:-1]]]
        columns = torch.tensor(steps).T
        tokens = torch.tensor([beginning[-1] if beginning else 0 for beginning in places])
        depth = torch.tensor([len(beginning) for beginning in places])
        return cls(list(members), tokens, depth, visible, *columns)


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

    Prefixes are read into a key-value cache, a few at a time, what all of them begin with once for
    those. Behind it the continuations stand in one row as a tree, so that what they share is read
    once, each hidden from the others by the mask, and the cache is not copied for them. The ranks
    share the prefixes; every rank must call it with equal arguments, runs the same number of
    forwards and gets the whole table.

    Args:
        model: The causal language model; it must take an explicit 4-dimensional mask.
        prefixes: P token sequences of at least two tokens.
        continuations: R token sequences of at least one token.
        temperature: The one the continuations were sampled at.
        token_budget: Upper bound of padded tokens per forward; a single prefix or continuation
            may exceed it, and so may a tree of short ones.
    """
    assert all(len(prefix) >= 2 for prefix in prefixes), "a prefix must have two tokens"
    assert all(len(part) >= 1 for part in continuations), "a continuation must not be empty"
    if not prefixes or not continuations:
        return torch.zeros(len(continuations), len(prefixes))
    trees = list(_trees(continuations))
    order = torch.tensor([member for tree in trees for member in tree.members]).argsort()
    widest = max(len(tree.tokens) for tree in trees)
    longest = max(len(prefix) for prefix in prefixes)
    shared = _shared(prefixes)  # by all, not by those read together: every rank reads it, or none
    by_length = sorted(range(len(prefixes)), key=lambda j: len(prefixes[j]))
    # Every rank takes as many, the last ones twice where they do not come out even.
    share = -(-len(prefixes) // world_size())
    own = [
        by_length[min(k, len(prefixes) - 1)]
        for k in range(rank(), share * world_size(), world_size())
    ]
    at_once = max(1, min(_ROWS, token_budget // max(longest, widest)))
    columns: dict[int, Tensor] = {}
    for first in range(0, share, at_once):
        chosen = [prefixes[j] for j in own[first : first + at_once]]
        cache = _read([prefix[:-1] for prefix in chosen], shared, model, longest + widest)
        last = torch.tensor([prefix[-1] for prefix in chosen])
        scored = torch.cat([_score(model, cache, last, tree, temperature) for tree in trees], dim=1)
        columns |= dict(zip(own[first:], scored[:, order], strict=False))
    everyone = {j: column for part in gather_objects(columns) for j, column in part.items()}
    return torch.stack([everyone[j] for j in range(len(prefixes))], dim=1)


def _shared(prefixes: Sequence[Ids]) -> int:
    """Count the tokens that all prefixes begin with, at least one short of what each has read."""
    equal = takewhile(lambda column: len(set(column)) == 1, zip(*prefixes, strict=False))
    return min(sum(1 for _ in equal), min(len(prefix) for prefix in prefixes) - 2)


def _trees(continuations: Sequence[Ids]) -> Iterator[_Tree]:
    """Plant trees of at most ``_PLACES`` places; a longer continuation stands alone.

    In alphabetical order what shares a beginning stands together.
    """
    chosen: list[int] = []
    places: set[Ids] = set()
    for index in sorted(range(len(continuations)), key=lambda i: continuations[i]):
        ids = continuations[index]
        own = {ids[:length] for length in range(len(ids))}
        if chosen and len(places | own) > _PLACES:
            yield _Tree.of(chosen, continuations)
            chosen, places = [], set()
        chosen.append(index)
        places |= own
    yield _Tree.of(chosen, continuations)


def _read(rows: Sequence[Ids], shared: int, model: PreTrainedModel, room: int) -> RaggedCache:
    """Read the first ``shared`` tokens of all rows once, and the rest left-padded to a block."""
    cache = RaggedCache(1 if shared else len(rows), room, model.device, adds_masks(model))
    if shared:
        _read_block(model, cache, [rows[0][:shared]])
        cache.reorder(np.zeros(len(rows), np.int64))
    _read_block(model, cache, [row[shared:] for row in rows])
    return cache


def _read_block(model: PreTrainedModel, cache: RaggedCache, rows: Sequence[Ids]) -> None:
    ids, counts = pad_left(rows)
    positions, mask = cache.open_block(ids.shape[1], counts)
    _states(model, cache, ids, positions, mask)
    cache.close_block(counts)


def _score(
    model: PreTrainedModel, cache: RaggedCache, last: Tensor, tree: _Tree, temperature: float
) -> Tensor:
    """Return (C, members of the tree) log-probs behind the C cached prefixes.

    The root reads the prefixes' ``last`` tokens. The block is not closed: the next tree overwrites
    it.
    """
    count, width = len(last), len(tree.tokens)
    ids = tree.tokens.repeat(count, 1)
    ids[:, 0] = last
    cache.place_block(width, np.full(count, width))
    lengths = torch.from_numpy(cache.lengths)[:, None]
    positions = lengths + tree.depth
    mask = _branching_mask(cache.reach, lengths, tree.visible)
    if cache.adds:
        mask = additive(to_device(mask, model.device), torch.float32)
    states = _states(model, cache, ids, positions, mask)
    project = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    out = torch.zeros(count, len(tree.members))
    place, target = (to_device(x, states.device) for x in (tree.place, tree.target))
    for row, hidden in enumerate(states):  # one row at a time: a vocabulary can be large
        logits = project(hidden).float() / temperature
        log_probs = logits[place, target] - torch.logsumexp(logits, dim=1)[place]
        out[row].index_add_(0, tree.owner, log_probs.cpu())
    return out


def _branching_mask(reach: int, lengths: Tensor, visible: Tensor) -> Tensor:
    """Show (C, 1, W, reach): the whole prefixes, of (C, 1) lengths, and of the tree's (W, W) block,
    which lies behind them, what it says."""
    width = len(visible)
    offset = torch.arange(reach)[None] - lengths
    in_block = (offset >= 0) & (offset < width)
    block = visible[:, offset.clamp(0, width - 1)].transpose(0, 1)
    return ((offset < 0)[:, None] | (in_block[:, None] & block))[:, None]


def _states(
    model: PreTrainedModel, cache: RaggedCache, ids: Tensor, positions: Tensor, mask: Tensor
) -> Tensor:
    device = model.device
    states: Tensor = model.base_model(
        input_ids=to_device(ids, device),
        attention_mask=to_device(mask, device),
        position_ids=to_device(positions, device),
        past_key_values=cache,
        use_cache=True,
    ).last_hidden_state
    return states
