"""Sample in process, in batches, with a key-value cache that lives across turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.models.base import LanguageModel
from ragen_pl.models.kernels.fused_decoder import has_hooks
from ragen_pl.models.kernels.kv_cache import STRIDE, RaggedCache, pad_left
from ragen_pl.ops.shape_buckets import bucket_size, round_up
from ragen_pl.rollout.engines.base import Autocast, Engine
from ragen_pl.rollout.engines.cuda_graphs import (
    CAPTURED_STRIDE,
    Capture,
    GraphCapturer,
    GraphedDecodeStep,
)
from ragen_pl.rollout.engines.decode_step import DecodeStep, build_decode_step, open_cache
from ragen_pl.rollout.engines.sampling import SampledTokens, sample_tokens, uniform_noise
from ragen_pl.types import Completion, EpisodeId, Request, Sampling, to_device

Ids = tuple[int, ...]

_COMPACT_BELOW = 0.75
"""Rows still sampling, as a share of the rows computed, under which finished rows are moved out."""


PREFILL_TOKENS = 4096
"""Padded tokens read at once: more do not stay in a processor's cache."""


@dataclass(frozen=True)
class InProcess(Engine):
    """Sample with the trainer's own model: any model, no copy of large weights but autocast's, and
    log-probs that are the trainer's up to rounding.

    Args:
        cuda_graphs: Record steps of decoding and let the GPU replay them; for a model that is whole
            on each GPU.
    """

    cuda_graphs: bool = False

    def check(self) -> None:
        """Refuse recordings where there is no GPU to replay them.

        Raises:
            ValueError: then.
        """
        if self.cuda_graphs and not torch.cuda.is_available():
            raise ValueError(
                "model.engine.cuda_graphs is true, but there is no CUDA GPU: set it to false"
            )

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> InProcessSampler:
        """Make the decoder."""
        return InProcessSampler(
            language.model,
            stop_id=language.markers.end,
            seed=seed,
            max_context=max_context,
            autocast=autocast,
            record=GraphCapturer() if self.cuda_graphs else None,
        )


class InProcessSampler:
    """Implement ``Generate`` with the policy's own weights and a cache per row.

    A row's cache is kept as long as its prefix only grows: each turn reads the new tokens once.
    Call ``reset`` after the weights change. The noise of a row is a function of (run seed, its
    identity) alone, so a result does not depend on what else is in the batch.

    Args:
        model: The causal language model.
        stop_id: Sampling it ends a completion.
        seed: The run's seed.
        max_context: Tokens one row can hold.
        autocast: The context to compute in, the trainer's own.
        record: What records steps of decoding, for them to be replayed.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_id: int,
        seed: int,
        max_context: int,
        autocast: Autocast = nullcontext,
        record: Capture | None = None,
    ) -> None:
        self.model = model
        self.stop_id = stop_id
        self.seed = seed
        self.max_context = max_context
        self.autocast = autocast
        self.record = record
        self.tokens_processed = 0
        self.reader: DecodeStep | None = None
        self.cache: RaggedCache | None = None
        self.rows: dict[EpisodeId, tuple[int, tuple[int, ...]]] = {}

    def reset(self) -> None:
        """Forget every cached row; required after each change of the weights."""
        self.release()

    def release(self) -> None:
        """Drop the cache and copies of weights; what is asked for next is read anew."""
        self.rows, self.cache, self.reader = {}, None, None

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        noise = np.stack([uniform_noise(self.seed, request, sampling) for request in requests])
        with self.autocast(), _each_weight_cast_once():
            self.reader = self.reader or self._build_reader()
            try:
                cache, logits = self._read(requests)
                drawn, order = self._decode(cache, logits, noise, sampling)
            finally:
                if isinstance(self.reader, GraphedDecodeStep):
                    self.reader.forget()
        completions = drawn.completions(self.stop_id)[: len(requests)]
        self.cache = cache
        for slot, index in enumerate(order.tolist()):
            if index >= len(requests):
                continue
            # The last token was drawn but not read: the cache holds all before it.
            seen = requests[index].prefix_ids + completions[index].token_ids[:-1]
            self.rows[requests[index].episode] = (slot, seen)
        return completions

    def _build_reader(self) -> DecodeStep:
        """Make what reads.

        Raises:
            ValueError: when steps are to be recorded that are not the same each time.
        """
        reader = build_decode_step(self.model, self.max_context)
        if self.record is None:
            return reader
        if has_hooks(self.model):
            raise ValueError(
                "model.engine.cuda_graphs is true, but hooks, such as those that gather shards, "
                "run within the model, and a recording would leave them out: set it to false"
            )
        return GraphedDecodeStep(reader, self.record)

    def _read(self, requests: Sequence[Request]) -> tuple[RaggedCache, Tensor]:
        """Read what no cached row holds yet; return the cache, and (rows, V) next-token logits.

        Behind the requests' rows may come others, of which nothing is read.
        """
        source, lengths, new_ids = [], [], []
        for request in requests:
            slot, seen = self.rows.get(request.episode, (0, ()))
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
        more = bucket_size(len(requests), self.model.device) - len(requests)
        source, lengths = source + [0] * more, lengths + [0] * more
        new_ids += [()] * more
        self.cache.reorder(np.array(source))
        self.cache.lengths = np.array(lengths)
        return self.cache, self._prefill(self.cache, new_ids)

    def _read_once(self, prefixes: Sequence[Ids]) -> tuple[RaggedCache, Tensor]:
        """Read equal prefixes, such as those of a group's members, once, and share the result."""
        places = {prefix: place for place, prefix in enumerate(dict.fromkeys(prefixes))}
        stride = STRIDE if self.record is None else CAPTURED_STRIDE
        cache = open_cache(self.model, len(places), self.max_context, stride)
        logits = self._prefill(cache, list(places))
        more = bucket_size(len(prefixes), self.model.device) - len(prefixes)
        index = np.array([places[prefix] for prefix in prefixes] + [0] * more)
        cache.reorder(index)
        return cache, logits[to_device(torch.from_numpy(index), logits.device)]

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

    def _forward(self, cache: RaggedCache, ids: Tensor, counts: np.ndarray) -> Tensor:
        positions, mask = cache.open_block(ids.shape[1], counts)
        assert self.reader is not None, "made before anything is read"
        ids = to_device(ids, self.model.device)
        logits = self.reader(ids, positions, mask, cache)
        cache.close_block(counts)
        self.tokens_processed += int(counts.sum())
        return logits

    def _decode(
        self, cache: RaggedCache, logits: Tensor, noise: np.ndarray, sampling: Sampling
    ) -> tuple[SampledTokens, np.ndarray]:
        """Draw tokens until every row has stopped; return them, and which row each cache row is.

        Args:
            cache: Holds as many rows.
            logits: (rows, V) of the first token.
            noise: (n, most new tokens); rows behind the n-th draw nothing.
            sampling: How to draw.
        """
        drawn, device = SampledTokens.nothing(len(logits), noise.shape[1]), logits.device
        order = np.arange(len(logits))
        active = order[: len(noise)]  # the places in the block, and in the cache, that still draw
        for step in range(sampling.max_new_tokens):
            rows = order[active]
            if len(active) < len(logits):
                logits = logits[to_device(torch.from_numpy(active), device)]
            own = to_device(torch.from_numpy(noise[rows, step]), device)
            # Over a vocabulary, on its device; what comes to the CPU is three numbers a row, in one
            # piece: a GPU is waited for once a token. A float32 holds every id below 2²⁴.
            found = torch.stack(
                [x.float() for x in sample_tokens(logits, own, sampling.temperature)]
            )
            tokens = drawn.add(rows, step, found.cpu().numpy())
            active = active[tokens != self.stop_id]
            if len(active) == 0 or step + 1 == sampling.max_new_tokens:
                break
            if len(active) < _COMPACT_BELOW * cache.window.stop:
                index = to_the_front(active, len(order))
                cache.reorder(index)
                order, active = order[index], np.arange(len(active))
                # Rows that have stopped fill it up.
                cache.window = slice(0, min(round_up(len(active), 4), len(order)))
            width = cache.window.stop
            counts = np.zeros(width, np.int64)
            counts[active] = 1
            ids = torch.from_numpy(drawn.tokens[order[:width], step])[:, None]
            logits = self._forward(cache, ids, counts)
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


def to_the_front(chosen: np.ndarray, total: int) -> np.ndarray:
    """Return a permutation of ``total`` places that brings the chosen ones to the front by
    exchanging as few as possible, each with one that is not chosen."""
    move = np.arange(total)
    is_chosen = np.zeros(total, dtype=bool)
    is_chosen[chosen] = True
    hole = np.flatnonzero(~is_chosen[: len(chosen)])
    behind = np.flatnonzero(is_chosen[len(chosen) :]) + len(chosen)
    move[hole], move[behind] = behind, hole
    return move
