"""Batched sampling in this process, with the trainer's own model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.kernels.fused_decoder import FusedDecoder
from ragen_pl.models.kernels.packed_linear import has_packed_products
from ragen_pl.rollout.engines.base import Autocast, Engine
from ragen_pl.rollout.engines.cached_rows import CachedRows
from ragen_pl.rollout.engines.cuda_graphs import (
    Capture,
    CaptureOrRun,
    GraphCapturer,
    GraphedDecodeStep,
)
from ragen_pl.rollout.engines.decode_step import DecodeStep, build_decode_step
from ragen_pl.runtime.parallel import in_threads
from ragen_pl.runtime.threads import torch_threads
from ragen_pl.types import Completion, Request, Sampling

_NARROW = 512
"""States of a model that is sampled from with one thread have fewer elements."""
_LEAST_ROWS = 8
"""Fewest rows of a thread: Python takes as long for a part of the rows as for all, and runs in one
thread at a time."""


@dataclass(frozen=True)
class InProcess(Engine):
    """Sampling with the trainer's own model: it supports any model, copies no large weights except
    autocast's casts and, in bf16 on a CPU, packed ones, and its log-probs equal the trainer's up to
    rounding.

    Args:
        cuda_graphs: Whether to capture decode steps as CUDA graphs and replay them, several times
            as fast where a GPU waits for launches; true needs a model that is unsharded on each
            GPU, None captures where that is so. With None a capture that fails is told once, and
            steps then run as they are.
    """

    cuda_graphs: bool | None = None
    uses_trainer_model: ClassVar[bool] = True

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
            value_head=language.value_head,
        )


class InProcessSampler:
    """A sampler with the policy's own weights and a cached row per trajectory.

    Call ``reset`` after the weights change. On a CPU each thread samples a part of the rows of a
    wide model: threads that share every operation wait for one another after it.

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
        value_head: The policy's value head, whose values are then reported with the tokens.
    """

    rows_class: ClassVar[type[CachedRows]] = CachedRows

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
        value_head: nn.Module | None = None,
    ) -> None:
        self.model, self.value_head = model, value_head
        self.stop_id = stop_id
        self.seed = seed
        self.max_context = max_context
        self.autocast = autocast
        self.new_capture, self.must_capture = new_capture, must_capture
        self.tokens_processed = 0
        self.decode_step: DecodeStep | None = None
        self.parts: list[CachedRows] = []

    def reset(self) -> None:
        """Drop every cached row; call this after each change of the weights."""
        self.release()

    def release(self) -> None:
        """Drop the cache and copies of weights; the next prefixes are read in full."""
        self.parts, self.decode_step = [], None

    @torch.no_grad()
    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        if not requests:
            return []
        with self.autocast(), _cached_casts(self.model):
            self.decode_step = self.decode_step or self._build_decode_step()
            if not _is_any_cached(requests, self.parts):
                self.parts = self._open_parts(self.decode_step, len(requests))
            shares = _divide(requests, self.parts)
            computations = [
                partial(part.sample, [requests[index] for index in share], sampling)
                for part, share in zip(self.parts, shares, strict=True)
            ]
            try:
                with _threads(self.model):
                    found = chain.from_iterable(in_threads(computations))
            finally:
                if isinstance(self.decode_step, GraphedDecodeStep):
                    self.decode_step.forget()
        self.tokens_processed += sum(part.take_count() for part in self.parts)
        completions = dict(zip(chain.from_iterable(shares), found, strict=True))
        return [completions[index] for index in range(len(requests))]

    def _build_decode_step(self) -> DecodeStep:
        """Return the decode step, captured if configured.

        Raises:
            ConfigError: when steps should be captured, but the model runs hooks.
        """
        decode_step = build_decode_step(self.model, self.max_context, self.value_head)
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

    def _open_parts(self, decode_step: DecodeStep, rows: int) -> list[CachedRows]:
        """Return parts for so many rows: as many as have threads of their own, if these are at
        least half of all threads, or one."""
        count, threads = 1, torch.get_num_threads()
        is_divided = (
            self.model.device.type == "cpu"
            and isinstance(decode_step, FusedDecoder)
            # A product of few rows in bf16 copies its weights, which every thread would do.
            and (decode_step.dtype == torch.float32 or has_packed_products(decode_step.dtype))
            and not decode_step.changes_angles
            and not _is_narrow(self.model)
        )
        if is_divided:
            count = min(threads, rows // _LEAST_ROWS)
        return [
            self.rows_class(
                self.model,
                decode_step,
                stop_id=self.stop_id,
                seed=self.seed,
                max_context=self.max_context,
                with_values=self.value_head is not None,
            )
            for _ in range(count if 2 * count >= threads else 1)
        ]


def _is_any_cached(requests: Sequence[Request], parts: Sequence[CachedRows]) -> bool:
    """Return whether a part holds the row of a request."""
    return any(request.episode in part.rows for part in parts for request in requests)


def _divide(requests: Sequence[Request], parts: Sequence[CachedRows]) -> list[list[int]]:
    """Return the requests of each part, by index: rows go where they are cached, and others where
    fewest rows are, members of a group, which begin alike, together as far as parts stay equal."""
    shares: list[list[int]] = [[] for _ in parts]
    cached = {
        episode: share for part, share in zip(parts, shares, strict=True) for episode in part.rows
    }
    others: list[int] = []
    for index, request in enumerate(requests):
        cached.get(request.episode, others).append(index)
    most, of_group = -(-len(requests) // len(parts)), dict[tuple[int, int], list[int]]()
    for index in others:
        episode = requests[index].episode
        group = (episode.iteration, episode.group_id)
        if group not in of_group or len(of_group[group]) >= most:
            of_group[group] = min(shares, key=len)
        of_group[group].append(index)
    return shares


def _is_narrow(model: PreTrainedModel) -> bool:
    """Return whether a token's operations are over before other threads have taken their part.

    A rollout of the default run takes a quarter longer where two threads share operations, and as
    long where each has rows of its own.
    """
    return bool(model.config.get_text_config().hidden_size < _NARROW)


def _threads(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Sample from a narrow model on a CPU with one thread."""
    is_alone = model.device.type == "cpu" and _is_narrow(model)
    return torch_threads(1) if is_alone else nullcontext()


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
