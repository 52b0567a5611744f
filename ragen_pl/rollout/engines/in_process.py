"""Batched sampling in this process, with a key-value cache that is kept across turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.kernels.kv_cache import STRIDE, RaggedCache, pad_left
from ragen_pl.ops.shape_buckets import bucket_size, round_up
from ragen_pl.rollout.engines.base import Autocast, Engine
from ragen_pl.rollout.engines.cuda_graphs import (
    CAPTURED_STRIDE,
    Capture,
    CaptureOrRun,
    GraphCapturer,
    GraphedDecodeStep,
)
from ragen_pl.rollout.engines.decode_step import DecodeStep, build_decode_step, open_cache
from ragen_pl.rollout.engines.sampling import SampledTokens, sample_tokens, uniform_noise
from ragen_pl.runtime.threads import torch_threads
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
_NARROW = 512
"""States of a model that is sampled from with one thread have fewer elements."""


def prefill_tokens(device: str, width: int) -> int:
    """Return the padded tokens per forward of a prefill.

    On a ``cpu`` more do not fit in its cache; on anything else more cost memory, and only narrow
    models, whose forwards take as long as their launches, gain time.
    """
    waits = device != "cpu" and width < _WIDE
    return _PREFILL_TOKENS_OF_LAUNCHES if waits else PREFILL_TOKENS


@dataclass(frozen=True)
class InProcess(Engine):
    """Sampling with the trainer's own model: it supports any model, copies no large weights except
    autocast's casts, and its log-probs equal the trainer's up to rounding.

    Args:
        cuda_graphs: Whether to capture decode steps as CUDA graphs and replay them, several times
            as fast where a GPU waits for launches; true needs a model that is unsharded on each
            GPU, None captures where that is so. With None a capture that fails is told once, and
            steps then run as they are.
    """

    cuda_graphs: bool | None = None

    def check(self, processes: int) -> None:
        """Refuse CUDA graphs on a machine without a GPU.

        Raises:
            ValueError: when ``cuda_graphs`` is true without a CUDA GPU.
        """
        if self.cuda_graphs and not torch.cuda.is_available():
            raise ValueError(
                "model.engine.cuda_graphs is true, but there is no CUDA GPU: set it to false"
            )

    def build(
        self, language: LanguageModel, seed: int, max_context: int, autocast: Autocast
    ) -> InProcessSampler:
        """Build the sampler."""
        where_possible = None if self.cuda_graphs is False else CaptureOrRun()
        return InProcessSampler(
            language.model,
            stop_id=language.markers.end,
            seed=seed,
            max_context=max_context,
            autocast=autocast,
            new_capture=GraphCapturer if self.cuda_graphs else where_possible,
            must_capture=self.cuda_graphs is True,
        )


class InProcessSampler:
    """A sampler with the policy's own weights and a cached row per trajectory.

    A row's cache is kept as far as its prefix stays the same: each turn reads the new tokens once,
    and what follows the first change, such as a cut by the memory, again.
    Call ``reset`` after the weights change. The noise of a row is a function of (run seed, its
    identity) alone, so its samples do not depend on the rest of the batch.

    Args:
        model: The causal language model.
        stop_id: The token that ends a completion.
        seed: The run's seed.
        max_context: Upper bound of a row's length in tokens.
        autocast: The trainer's autocast.
        new_capture: Function that returns a function that captures decode steps for replay; None
            runs each step uncaptured.
        must_capture: Whether it is an error if steps cannot be captured; if not, steps are captured
            on GPUs alone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        stop_id: int,
        seed: int,
        max_context: int,
        autocast: Autocast = nullcontext,
        new_capture: Callable[[], Capture] | None = None,
        must_capture: bool = True,
    ) -> None:
        self.model = model
        self.stop_id = stop_id
        self.seed = seed
        self.max_context = max_context
        self.autocast = autocast
        self.new_capture, self.must_capture = new_capture, must_capture
        self.tokens_processed = 0
        self.decode_step: DecodeStep | None = None
        self.cache: RaggedCache | None = None
        self.rows: dict[EpisodeId, tuple[int, tuple[int, ...]]] = {}

    def reset(self) -> None:
        """Drop every cached row; call this after each change of the weights."""
        self.release()

    def release(self) -> None:
        """Drop the cache and copies of weights; the next prefixes are read in full."""
        self.rows, self.cache, self.decode_step = {}, None, None

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        noise = np.stack([uniform_noise(self.seed, request, sampling) for request in requests])
        with self.autocast(), _cached_casts(self.model), _threads(self.model):
            self.decode_step = self.decode_step or self._build_decode_step()
            try:
                cache, logits = self._read(requests)
                sampled, order = self._decode(cache, logits, noise, sampling)
            finally:
                if isinstance(self.decode_step, GraphedDecodeStep):
                    self.decode_step.forget()
        completions = sampled.completions(self.stop_id)[: len(requests)]
        self.cache = cache
        for slot, index in enumerate(order.tolist()):
            if index >= len(requests):
                continue
            # The last token was sampled but not read: the cache holds all before it.
            seen = requests[index].prefix_ids + completions[index].token_ids[:-1]
            self.rows[requests[index].episode] = (slot, seen)
        return completions

    @property
    def _is_captured(self) -> bool:
        return isinstance(self.decode_step, GraphedDecodeStep)

    def _build_decode_step(self) -> DecodeStep:
        """Return the decode step, captured if configured.

        Raises:
            ConfigError: when steps should be captured, but the model runs hooks.
        """
        decode_step = build_decode_step(self.model, self.max_context)
        if self.new_capture is None:
            return decode_step
        if not self.must_capture and (self.model.device.type != "cuda" or has_hooks(self.model)):
            return decode_step
        if has_hooks(self.model):
            raise ConfigError(
                "model.engine.cuda_graphs is true, but hooks, such as those that gather shards, "
                "run within the model, and a CUDA graph would leave them out: set it to false"
            )
        return GraphedDecodeStep(decode_step, self.new_capture)

    def _read(self, requests: Sequence[Request]) -> tuple[RaggedCache, Tensor]:
        """Prefill the tokens that are not cached yet; return the cache, and (rows, V) next-token
        logits.

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
        """Read new tokens, left-padded to blocks; return (rows, V) next-token logits."""
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
        assert self.decode_step is not None, "built before the first prefill"
        ids = to_device(ids, self.model.device)
        logits = self.decode_step(ids, positions, mask, cache)
        cache.close_block(counts)
        self.tokens_processed += int(counts.sum())
        return logits

    def _decode(
        self, cache: RaggedCache, logits: Tensor, noise: np.ndarray, sampling: Sampling
    ) -> tuple[SampledTokens, np.ndarray]:
        """Sample until every row has stopped; return the tokens, and each cache row's row in them.

        Args:
            cache: Cache with as many rows as ``logits``.
            logits: (rows, V) logits of the first token.
            noise: (n, max new tokens); rows after the n-th sample nothing.
            sampling: Temperature and limits.
        """
        compact_below = _COMPACT_BELOW_CAPTURED if self._is_captured else _COMPACT_BELOW
        sampled, device = SampledTokens.empty(len(logits), noise.shape[1]), logits.device
        order = np.arange(len(logits))
        active = order[: len(noise)]  # rows of the block, and of the cache, that still sample
        for step in range(sampling.max_new_tokens):
            rows = order[active]
            if len(active) < len(logits):
                logits = logits[to_device(torch.from_numpy(active), device)]
            own = to_device(torch.from_numpy(noise[rows, step]), device)
            # Sampling runs on the device. Three numbers per row are copied to the CPU in one
            # tensor, for one synchronization per token. A float32 represents every id below 2²⁴.
            found = torch.stack(
                [x.float() for x in sample_tokens(logits, own, sampling.temperature)]
            )
            tokens = sampled.add(rows, step, found.cpu().numpy())
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


def _threads(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Sample from a narrow model on a CPU with one thread: a token's operations are over before
    others have taken their part, so that a rollout of two takes a quarter longer."""
    is_narrow = model.config.get_text_config().hidden_size < _NARROW
    return torch_threads(1) if model.device.type == "cpu" and is_narrow else nullcontext()


@contextmanager
def _cached_casts(model: nn.Module) -> Iterator[None]:
    """Let autocast cast each weight once, not for every token, which moves more bytes than a
    token's products read.

    Lightning disables autocast's cache, and the cache takes only weights that require a gradient:
    so frozen ones do for as long as nothing is recorded, unless hooks replace them by others.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    weights = (weight for weight in model.parameters() if weight.dtype == torch.float32)
    frozen = [weight for weight in weights if not weight.requires_grad]
    if frozen and has_hooks(model):
        frozen = []
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
        torch.set_autocast_cache_enabled(before)


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
