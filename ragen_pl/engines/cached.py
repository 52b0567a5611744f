"""Sample in process, in batches, with a key-value cache that lives across turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.engines.base import Autocast, Engine, noise_key
from ragen_pl.engines.ragged_cache import RaggedCache, pad_left
from ragen_pl.models.attention import prepared
from ragen_pl.models.language import LanguageModel
from ragen_pl.types import Completion, Request, Sampling

Ids = tuple[int, ...]

_COMPACT_BELOW = 0.75
"""Rows still sampling, as a share of the rows computed, under which finished rows are moved out."""


PREFILL_TOKENS = 4096
"""Padded tokens read at once: more do not stay in a processor's cache."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Hold what one call draws, each (rows, most new tokens), and how far each row went."""

    tokens: Tensor
    log_probs: Tensor
    entropies: Tensor
    counts: Tensor

    @classmethod
    def nothing(cls, rows: int, most: int) -> _Drawn:
        blank = torch.zeros(rows, most)
        return cls(blank.long(), blank, blank.clone(), torch.zeros(rows, dtype=torch.long))

    def completions(self, stop_id: int) -> list[Completion]:
        return [
            Completion(
                tuple(tokens[:count]),
                tuple(log_probs[:count]),
                tuple(entropies[:count]),
                stopped=tokens[count - 1] == stop_id,
            )
            for tokens, log_probs, entropies, count in zip(
                self.tokens.tolist(),
                self.log_probs.tolist(),
                self.entropies.tolist(),
                self.counts.tolist(),
                strict=True,
            )
        ]


@dataclass(frozen=True)
class Cached(Engine):
    """Sample with the trainer's own model: any model, no second copy of the weights, and log-probs
    that are the trainer's up to rounding."""

    def check(self) -> None:
        """Refuse nothing."""

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> CachedDecoder:
        """Make the decoder."""
        return CachedDecoder(
            language.model,
            stop_id=language.markers.end,
            seed=seed,
            max_context=max_context,
            autocast=autocast,
        )


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
        autocast: Autocast = nullcontext,
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
        self.release()

    def release(self) -> None:
        """Drop the cache; what is asked for next is read anew."""
        self.rows, self.cache = {}, None

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        noise = np.stack([uniform_noise(self.seed, request, sampling) for request in requests])
        with self.autocast(), _each_weight_cast_once():
            cache, logits = self._read(requests)
            drawn, order = self._decode(cache, logits, torch.from_numpy(noise), sampling)
        completions = drawn.completions(self.stop_id)
        self.cache = cache
        for slot, index in enumerate(order.tolist()):
            # The last token was drawn but not read: the cache holds all before it.
            seen = requests[index].prefix_ids + completions[index].token_ids[:-1]
            self.rows[_identity(requests[index])] = (slot, seen)
        return completions

    def _read(self, requests: Sequence[Request]) -> tuple[RaggedCache, Tensor]:
        """Read what no cached row holds yet; return the cache, and (rows, V) next-token logits."""
        source, lengths, new_ids = [], [], []
        for request in requests:
            slot, seen = self.rows.get(_identity(request), (0, ()))
            if request.prefix_ids[: len(seen)] != seen:
                slot, seen = 0, ()
            # A prefix known whole: its last token is read again, since its logits are asked for.
            seen = seen[: len(request.prefix_ids) - 1]
            source.append(slot)
            lengths.append(len(seen))
            new_ids.append(request.prefix_ids[len(seen) :])
        self.rows = {}
        if self.cache is None or not any(lengths):
            return self._read_once(new_ids)
        self.cache.reorder(torch.tensor(source))
        self.cache.lengths = torch.tensor(lengths)
        return self.cache, self._prefill(self.cache, new_ids)

    def _read_once(self, prefixes: Sequence[Ids]) -> tuple[RaggedCache, Tensor]:
        """Read equal prefixes, such as those of a group's members, once, and share the result."""
        places = {prefix: place for place, prefix in enumerate(dict.fromkeys(prefixes))}
        cache = RaggedCache(len(places), self.max_context, self.model.device)
        logits = self._prefill(cache, list(places))
        index = torch.tensor([places[prefix] for prefix in prefixes])
        cache.reorder(index)
        return cache, logits[index]

    def _prefill(self, cache: RaggedCache, new_ids: Sequence[Ids]) -> Tensor:
        """Read new tokens, left-padded to blocks; return (rows, V) next-token logits."""
        rows = max(1, PREFILL_TOKENS // max(len(ids) for ids in new_ids))
        logits = []
        for first in range(0, len(new_ids), rows):
            part = new_ids[first : first + rows]
            cache.window = slice(first, first + len(part))
            logits.append(self._forward(cache, *pad_left(part)))
        cache.window = slice(0, len(new_ids))
        return torch.cat(logits)

    def _forward(self, cache: RaggedCache, ids: Tensor, counts: Tensor) -> Tensor:
        positions, mask = cache.open_block(ids.shape[1], counts)
        logits: Tensor = self.model(
            input_ids=ids.to(self.model.device),
            attention_mask=prepared(mask, self.model),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.close_block(counts)
        self.tokens_processed += int(counts.sum())
        return logits.float()

    def _decode(
        self, cache: RaggedCache, logits: Tensor, noise: Tensor, sampling: Sampling
    ) -> tuple[_Drawn, Tensor]:
        """Draw tokens until every row has stopped; return them, and which row each cache row is.

        Args:
            cache: Holds n rows.
            logits: (n, V) of the first token.
            noise: (n, most new tokens).
            sampling: How to draw.
        """
        drawn, noise = _Drawn.nothing(*noise.shape), noise.to(logits.device)
        order = torch.arange(len(noise))
        active = order  # the places in the block, and so in the cache, that still draw
        for step in range(sampling.max_new_tokens):
            rows = order[active]
            # Over a vocabulary, on its device; what comes to the CPU is three numbers a row.
            found = draw(logits[active], noise[rows, step], sampling.temperature)
            # In one piece: a GPU is waited for once a token.
            tokens, log_probs, entropies = torch.stack([each.double() for each in found]).cpu()
            drawn.tokens[rows, step] = tokens = tokens.long()
            drawn.log_probs[rows, step] = log_probs.float()
            drawn.entropies[rows, step] = entropies.float()
            drawn.counts[rows] = step + 1
            active = active[tokens != self.stop_id]
            if len(active) == 0 or step + 1 == sampling.max_new_tokens:
                break
            if len(active) < _COMPACT_BELOW * cache.window.stop:
                move = to_the_front(active, len(order))
                cache.reorder(move)
                order, active = order[move], torch.arange(len(active))
                cache.window = slice(0, len(active))
            width = cache.window.stop
            counts = torch.zeros(width, dtype=torch.long).index_fill(0, active, 1)
            logits = self._forward(cache, drawn.tokens[order[:width], step, None], counts)
        cache.window = slice(0, len(order))
        return drawn, order


@contextmanager
def _each_weight_cast_once() -> Iterator[None]:
    """Let autocast keep the weights it has cast, within itself.

    Lightning's does not, and casts every weight anew for every token: more bytes than a token's
    products read.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def to_the_front(chosen: Tensor, total: int) -> Tensor:
    """Return a permutation of ``total`` places that brings the chosen ones to the front by
    exchanging as few as possible, each with one that is not chosen."""
    move = torch.arange(total)
    is_chosen = torch.zeros(total, dtype=torch.bool).index_fill(0, chosen, True)
    hole = torch.nonzero(~is_chosen[: len(chosen)])[:, 0]
    behind = torch.nonzero(is_chosen[len(chosen) :])[:, 0] + len(chosen)
    move[hole], move[behind] = behind, hole
    return move


def _identity(request: Request) -> tuple[int, int, int]:
    return request.iteration, request.group_id, request.member


def uniform_noise(seed: int, request: Request, sampling: Sampling) -> np.ndarray:
    """Draw one uniform number per token of a turn, from the row's identity alone."""
    bits = np.random.Philox(np.random.SeedSequence(noise_key(seed, request)))
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
