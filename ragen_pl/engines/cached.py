"""Sample in process, in batches, with a key-value cache that lives across turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.engines.ragged_cache import RaggedCache
from ragen_pl.types import Completion, Request, Sampling

_COMPACT_BELOW = 0.75
"""Rows still sampling, as a share of the rows computed, under which finished rows are moved out."""


@dataclass(slots=True)
class _Row:
    """Follow one row through one call."""

    new_ids: tuple[int, ...]
    noise: np.ndarray
    tokens: list[int]
    log_probs: list[float]
    entropies: list[float]


class CachedDecoder:
    """Implement ``Generate`` with the policy's own forward and a cache per row.

    A row's cache is kept as long as its prefix only grows: each turn reads the new tokens once.
    Call ``reset`` after the weights change. The noise of a row is a function of (run seed, its
    identity) alone, so a result does not depend on what else is in the batch.

    Args:
        model: The causal language model; only its ``forward`` is called.
        stop_id: Sampling it ends a completion.
        seed: The run's seed.
        max_context: Tokens one row can hold.
        autocast: The context to compute in, the trainer's own.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_id: int,
        seed: int,
        max_context: int,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.model = model
        self.stop_id = stop_id
        self.seed = seed
        self.max_context = max_context
        self.autocast = autocast
        self.tokens_processed = 0
        self.cache: RaggedCache | None = None
        self.rows: dict[tuple[int, int, int], tuple[int, tuple[int, ...]]] = {}

    def reset(self) -> None:
        """Forget every cached row; required after each change of the weights."""
        self.rows, self.cache = {}, None

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        with self.autocast():
            cache, fresh = self._admit(requests)
            rows = [
                _Row(new, uniform_noise(self.seed, r, sampling), [], [], [])
                for r, new in zip(requests, fresh, strict=True)
            ]
            logits = self._prefill(cache, rows)
            order = self._decode(cache, rows, logits, sampling)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        cache.reorder(back)
        self.cache = cache
        for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
            # The last token was drawn but not read: the cache holds all before it.
            seen = request.prefix_ids + tuple(row.tokens[:-1])
            self.rows[_identity(request)] = (index, seen)
        return [
            Completion(
                tuple(row.tokens),
                tuple(row.log_probs),
                tuple(row.entropies),
                stopped=row.tokens[-1] == self.stop_id,
            )
            for row in rows
        ]

    def _admit(self, requests: Sequence[Request]) -> tuple[RaggedCache, list[tuple[int, ...]]]:
        """Bring the cached rows into request order; return each row's tokens not yet read."""
        source, lengths, fresh = [], [], []
        for request in requests:
            index, seen = self.rows.get(_identity(request), (0, ()))
            if request.prefix_ids[: len(seen)] != seen:
                index, seen = 0, ()
            source.append(index)
            lengths.append(len(seen))
            fresh.append(request.prefix_ids[len(seen) :])
        self.rows = {}
        if self.cache is None or not any(lengths):
            cache = RaggedCache(len(requests), self.max_context)
        else:
            cache = self.cache
            cache.reorder(torch.tensor(source))
        cache.lengths = torch.tensor(lengths)
        return cache, fresh

    def _prefill(self, cache: RaggedCache, rows: Sequence[_Row]) -> Tensor:
        """Read all rows' new tokens, left-padded to a block; return (rows, V) next-token logits."""
        counts = torch.tensor([len(row.new_ids) for row in rows])
        width = int(counts.max())
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        for index, row in enumerate(rows):
            ids[index, width - len(row.new_ids) :] = torch.tensor(row.new_ids)
        return self._forward(cache, ids, counts)

    def _forward(self, cache: RaggedCache, ids: Tensor, counts: Tensor) -> Tensor:
        positions, mask = cache.open_block(ids.shape[1], counts)
        device = self.model.device
        logits: Tensor = self.model(
            input_ids=ids.to(device),
            attention_mask=mask.to(device),
            position_ids=positions.to(device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.close_block(counts)
        self.tokens_processed += int(counts.sum())
        return logits.float().cpu()

    def _decode(
        self, cache: RaggedCache, rows: Sequence[_Row], logits: Tensor, sampling: Sampling
    ) -> Tensor:
        """Draw tokens until every row has stopped; return the rows' order in the cache."""
        order = torch.arange(len(rows))
        active = torch.arange(len(rows))
        for step in range(sampling.max_new_tokens):
            here = order[active].tolist()
            noise = torch.tensor([rows[i].noise[step] for i in here])
            tokens, log_probs, entropies = draw(logits[active], noise, sampling.temperature)
            going = []
            for slot, i, token, log_prob, entropy in zip(
                active.tolist(),
                here,
                tokens.tolist(),
                log_probs.tolist(),
                entropies.tolist(),
                strict=True,
            ):
                rows[i].tokens.append(token)
                rows[i].log_probs.append(log_prob)
                rows[i].entropies.append(entropy)
                if token != self.stop_id:
                    going.append(slot)
            if not going or step + 1 == sampling.max_new_tokens:
                break
            alive = torch.tensor(going)
            if len(going) < _COMPACT_BELOW * cache.width:
                resting = torch.ones(len(rows), dtype=torch.bool)
                resting[alive] = False
                move = torch.cat([alive, torch.nonzero(resting)[:, 0]])
                cache.reorder(move)
                order = order[move]
                cache.width = len(going)
                alive = torch.arange(len(going))
            counts = torch.zeros(cache.width, dtype=torch.long)
            counts[alive] = 1
            ids = torch.tensor([[rows[i].tokens[-1]] for i in order[: cache.width].tolist()])
            logits, active = self._forward(cache, ids, counts), alive
        cache.width = len(rows)
        return order


def _identity(request: Request) -> tuple[int, int, int]:
    return request.iteration, request.group_id, request.member


def uniform_noise(seed: int, request: Request, sampling: Sampling) -> np.ndarray:
    """Draw one uniform number per token of a turn, from the row's identity alone."""
    key = (seed, request.iteration, request.group_id, request.member, request.turn)
    bits = np.random.Philox(np.random.SeedSequence(key))
    return np.random.Generator(bits).random(sampling.max_new_tokens, dtype=np.float32)


def draw(logits: Tensor, noise: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: (n, V).
        noise: (n,) uniform in [0, 1).
        temperature: 0 takes the most likely token.

    Returns:
        Tokens, their log-probs and the entropies of the distributions, each (n,); at temperature
        0 log-probs and entropies are those at temperature 1.
    """
    log_p = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
    p = log_p.exp()
    if temperature == 0:
        tokens = log_p.argmax(-1)
    else:
        cumulative = p.cumsum(-1)
        target = noise[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, log_p.gather(-1, tokens[:, None])[:, 0], -(p * log_p).sum(-1)
