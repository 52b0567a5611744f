"""Sampling of rows whose keys and values are kept across turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ragen_pl.models.kernels.kv_cache import STRIDE, RaggedCache, pad_left
from ragen_pl.ops.shape_buckets import bucket_size, round_up
from ragen_pl.rollout.engines.cuda_graphs import CAPTURED_STRIDE, GraphedDecodeStep
from ragen_pl.rollout.engines.decode_step import DecodeStep, open_cache
from ragen_pl.rollout.engines.sampling import SampledTokens, sample_tokens, uniform_noise
from ragen_pl.types import Completion, EpisodeId, Request, Sampling, to_device

Ids = tuple[int, ...]

_COMPACT_BELOW = 0.75
"""Finished rows are moved out when less than this share of the computed rows still samples."""
_COMPACT_BELOW_CAPTURED = 0.5
"""The same where decode steps are captured, as each number of rows needs a graph."""

PREFILL_TOKENS, _PREFILL_TOKENS_OF_LAUNCHES = 4096, 16384
_WIDE = 1024
"""States of a model whose forwards take longer than their launches on a GPU have so many elements:
launching 24 layers takes some 10 ms, and 4,096 tokens of 0.5B about as long."""


def prefill_tokens(device: str, width: int) -> int:
    """Return the padded tokens per forward of a prefill.

    On a ``cpu`` more do not fit in its cache; on anything else more cost memory, and only narrow
    models, whose forwards take as long as their launches, gain time.
    """
    waits = device != "cpu" and width < _WIDE
    return _PREFILL_TOKENS_OF_LAUNCHES if waits else PREFILL_TOKENS


class CachedRows:
    """A sampler of rows with a cached row per trajectory, which never sees others' rows.

    A row's cache is kept as far as its prefix stays the same: each turn reads the new tokens once,
    and what follows the first change, such as a cut by the memory, again. The noise of a row is a
    function of (run seed, its identity) alone, so its samples do not depend on the rest of the
    batch.

    Args:
        model: The causal language model.
        decode_step: Its decode step.
        stop_id: The token that ends a completion.
        seed: The run's seed.
        max_context: Upper bound of a row's length in tokens.
        with_values: Whether the decode step gives values, too.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        decode_step: DecodeStep,
        *,
        stop_id: int,
        seed: int,
        max_context: int,
        with_values: bool = False,
    ) -> None:
        self.model, self.decode_step, self.with_values = model, decode_step, with_values
        self.stop_id, self.seed, self.max_context = stop_id, seed, max_context
        self._tokens_processed = 0
        self.cache: RaggedCache | None = None
        self.rows: dict[EpisodeId, tuple[int, Ids]] = {}

    @torch.no_grad()
    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Sample a completion for each request; other rows are dropped."""
        if not requests:
            self.rows, self.cache = {}, None
            return []
        noise = np.stack([uniform_noise(self.seed, request, sampling) for request in requests])
        cache, logits = self._read(requests)
        sampled, order = self._decode(cache, logits, noise, sampling)
        completions = sampled.completions(self.stop_id)[: len(requests)]
        self.cache = cache
        for slot, index in enumerate(order.tolist()):
            if index >= len(requests):
                continue
            # The last token was sampled but not read: the cache holds all before it.
            seen = requests[index].prefix_ids + completions[index].token_ids[:-1]
            self.rows[requests[index].episode] = (slot, seen)
        return completions

    def take_count(self) -> int:
        """Return the number of tokens read since the last call."""
        count, self._tokens_processed = self._tokens_processed, 0
        return count

    @property
    def _is_captured(self) -> bool:
        return isinstance(self.decode_step, GraphedDecodeStep)

    def _read(self, requests: Sequence[Request]) -> tuple[RaggedCache, Tensor]:
        """Prefill the tokens that are not cached yet; return the cache, and next-token logits as
        the decode step gives them, with a row for each of the cache.

        The cache may have more rows than there are requests; the rest is padding.
        """
        source, lengths, new_ids = [], [], []
        for request in requests:
            slot, seen = self.rows.get(request.episode, (0, ()))
            seen = _common_prefix(seen, request.prefix_ids)
            # The last token of a fully cached prefix is read again, for its logits.
            seen = seen[: len(request.prefix_ids) - 1]
            source.append(slot)
            lengths.append(len(seen))
            new_ids.append(request.prefix_ids[len(seen) :])
        self.rows = {}
        if self.cache is None or not any(lengths):
            self.cache = None  # or two caches would live at once
            return self._prefill_distinct(new_ids)
        more = bucket_size(len(requests), self.model.device) - len(requests)
        source, lengths = source + [0] * more, lengths + [0] * more
        new_ids += [()] * more
        self.cache.reorder(np.array(source))
        self.cache.lengths = np.array(lengths)
        return self.cache, self._prefill(self.cache, new_ids)

    def _prefill_distinct(self, prefixes: Sequence[Ids]) -> tuple[RaggedCache, Tensor]:
        """Read equal prefixes, such as those of a group's members, once, and copy the result."""
        distinct = {prefix: row for row, prefix in enumerate(dict.fromkeys(prefixes))}
        stride = CAPTURED_STRIDE if self._is_captured else STRIDE
        cache = open_cache(self.model, len(distinct), self.max_context, stride)
        logits = self._prefill(cache, list(distinct))
        more = bucket_size(len(prefixes), self.model.device) - len(prefixes)
        index = np.array([distinct[prefix] for prefix in prefixes] + [0] * more)
        cache.reorder(index)
        return cache, logits[to_device(torch.from_numpy(index), logits.device)]

    def _prefill(self, cache: RaggedCache, new_ids: Sequence[Ids]) -> Tensor:
        """Read new tokens, left-padded to blocks; return next-token logits, a row for each."""
        width = self.model.config.get_text_config().hidden_size
        tokens = prefill_tokens(self.model.device.type, width)
        rows = max(1, tokens // max(len(ids) for ids in new_ids))
        logits = []
        for first in range(0, len(new_ids), rows):
            part = new_ids[first : first + rows]
            cache.active_rows = slice(first, first + len(part))
            logits.append(self._forward(cache, *pad_left(part)))
        cache.active_rows = slice(0, len(new_ids))
        return torch.cat(logits)

    def _forward(self, cache: RaggedCache, ids: Tensor, counts: np.ndarray) -> Tensor:
        positions, mask = cache.open_block(ids.shape[1], counts)
        ids = to_device(ids, self.model.device)
        logits = self.decode_step(ids, positions, mask, cache)
        cache.close_block(counts)
        self._tokens_processed += int(counts.sum())
        return logits

    def _decode(
        self, cache: RaggedCache, logits: Tensor, noise: np.ndarray, sampling: Sampling
    ) -> tuple[SampledTokens, np.ndarray]:
        """Sample until every row has stopped; return the tokens, and each cache row's row in them.

        Args:
            cache: Cache with as many rows as ``logits``.
            logits: (rows, V) logits of the first token, with values (rows, V + 1).
            noise: (n, max new tokens); rows after the n-th sample nothing.
            sampling: Temperature and limits.
        """
        compact_below = _COMPACT_BELOW_CAPTURED if self._is_captured else _COMPACT_BELOW
        device = logits.device
        sampled = SampledTokens.empty(len(logits), noise.shape[1], with_values=self.with_values)
        order = np.arange(len(logits))
        active = order[: len(noise)]  # rows of the block, and of the cache, that still sample
        for step in range(sampling.max_new_tokens):
            rows = order[active]
            if len(active) < len(logits):
                logits = logits[to_device(torch.from_numpy(active), device)]
            own = to_device(torch.from_numpy(noise[rows, step]), device)
            # Sampling runs on the device. A few numbers per row are copied to the CPU in one
            # tensor, for one synchronization per token. A float32 represents every id below 2²⁴.
            values = [logits[:, -1]] if self.with_values else []
            logits = logits[:, :-1] if self.with_values else logits
            found = [*sample_tokens(logits, own, sampling.temperature), *values]
            numbers = torch.stack([each.float() for each in found])
            tokens = sampled.add(rows, step, numbers.cpu().numpy())
            active = active[tokens != self.stop_id]
            if len(active) == 0 or step + 1 == sampling.max_new_tokens:
                break
            if len(active) < compact_below * cache.active_rows.stop:
                index = move_to_front(active, len(order))
                cache.reorder(index)
                order, active = order[index], np.arange(len(active))
                # Finished rows pad the block to a bucket size.
                cache.active_rows = slice(0, min(round_up(len(active), 4), len(order)))
            width = cache.active_rows.stop
            counts = np.zeros(width, np.int64)
            counts[active] = 1
            ids = torch.from_numpy(sampled.tokens[order[:width], step])[:, None]
            logits = self._forward(cache, ids, counts)
        cache.active_rows = slice(0, len(order))
        return sampled, order


def _common_prefix(seen: Ids, wanted: Ids) -> Ids:
    """Return the tokens with which both begin."""
    if wanted[: len(seen)] == seen:
        return seen
    pairs = zip(seen, wanted, strict=False)
    return seen[: next((i for i, (a, b) in enumerate(pairs) if a != b), len(wanted))]


def move_to_front(chosen: np.ndarray, total: int) -> np.ndarray:
    """Return a permutation of ``total`` rows that moves the chosen ones to the front with the
    fewest exchanges, each with a row that is not chosen."""
    move = np.arange(total)
    is_chosen = np.zeros(total, dtype=bool)
    is_chosen[chosen] = True
    free = np.flatnonzero(~is_chosen[: len(chosen)])
    behind = np.flatnonzero(is_chosen[len(chosen) :]) + len(chosen)
    move[free], move[behind] = behind, free
    return move
