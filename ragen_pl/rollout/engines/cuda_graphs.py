"""CUDA graphs of decode steps: captured once, then replayed without Python.

A step of a model of 24 layers is several hundred kernels of a few microseconds each, and launching
one from Python takes longer than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ragen_pl.errors import ConfigError
from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.rollout.engines.decode_step import DecodeStep

_LOG = logging.getLogger(__name__)

CAPTURED_STRIDE = 256
"""Slots by which the padded length grows when steps are captured, as each length needs a graph."""

Step = Callable[[], Tensor]
Capture = Callable[[Step], Step]
"""A function that runs a step once, recording its operations and the tensors they read and write.
It returns a function that repeats these operations on these tensors and returns the same tensor."""


class GraphCapturer:
    """A ``Capture`` with CUDA graphs that share one memory pool: only one of them runs at a time,
    and its result is copied before the next.

    Build another one after the graphs were dropped: a pool whose graphs are all gone cannot be used
    again while a library, such as cuBLAS, holds workspace in it.
    """

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Capture a step.

        Raises:
            ConfigError: when the step synchronizes with the GPU, which a capture does not allow, or
                runs on a CPU.
        """
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # Thread-local: other threads, which step environments, do not affect it.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                logits = step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # What ends a capture that has failed says only that it has.
            reason = error.__context__ or error
            raise ConfigError(
                "model.engine.cuda_graphs is true, but this model's decode step cannot be "
                f"captured ({str(reason).splitlines()[0]}): set it to false"
            ) from reason
        finally:
            torch.cuda.set_stream(before)  # a capture that failed leaves its own stream current

        if logits.device.type != "cuda":
            raise ConfigError(
                f"model.engine.cuda_graphs is true, but the model is on {logits.device}: set it to "
                "false, or trainer.accelerator to gpu"
            )

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


class CaptureOrRun:
    """A source of captures for steps that need not be captured: the first failure is told, and from
    then on steps run as they are.

    Args:
        new_capture: Source of the captures that are tried.
    """

    def __init__(self, new_capture: Callable[[], Capture] = GraphCapturer) -> None:
        self.new_capture, self.has_failed = new_capture, False

    def __call__(self) -> Capture:
        if self.has_failed:
            return _run
        capture = self.new_capture()

        def attempt(step: Step) -> Step:
            if self.has_failed:
                return step
            try:
                return capture(step)
            except (ConfigError, torch.OutOfMemoryError) as error:
                self.has_failed = True
                reason = str(error.__cause__ or error).splitlines()[0]
                _LOG.warning("decode steps are not captured as CUDA graphs: %s", reason)
                return step

        return attempt


def _run(step: Step) -> Step:
    """Return a step as it is."""
    return step


class GraphedDecodeStep:
    """A ``DecodeStep`` that captures each kind of one-token step at its second occurrence and
    replays it from then on; wider blocks run uncaptured.

    Steps of one kind have the same number of rows, the same padded length, and the same buffers.
    Weights that autocast has cast live as long as its context: call ``forget`` before it ends.
    """

    def __init__(self, decode_step: DecodeStep, new_capture: Callable[[], Capture]) -> None:
        self.decode_step, self.new_capture = decode_step, new_capture
        self.forget()

    def forget(self) -> None:
        """Drop all captured steps."""
        self.steps: dict[tuple[int, ...], _Captured | None] = {}
        self.capture = self.new_capture()
        self.logits: Tensor | None = None

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache) -> Tensor:
        if ids.shape[1] != 1:
            return self.decode_step(ids, positions, mask, cache)
        kind = (
            len(ids),
            cache.active_rows.start,
            cache.padded_length,
            *cache.buffer_addresses(),
        )
        if kind not in self.steps:
            self.steps[kind] = None
            # Warm-up: libraries initialize themselves on the first call.
            logits = self.decode_step(ids, positions, mask, cache)
            if self.logits is None or len(self.logits) < len(logits):
                self.logits = torch.empty_like(logits)
            return logits
        step = self.steps[kind]
        if step is None:
            step = self.steps[kind] = _Captured(self, ids, positions, mask, cache)
        return step(ids, positions, mask, cache.slots)


class _Captured:
    """A captured step and its input tensors, whose memory must stay the same.

    Logits are copied to one buffer of all captured steps: each step's own, of every number of rows,
    would add up to gigabytes.
    """

    def __init__(
        self,
        owner: GraphedDecodeStep,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: RaggedCache,
    ) -> None:
        ids, positions, mask, cache.slots = self.inputs = (
            ids.clone(),
            positions.clone(),
            mask.clone(),
            cache.slots.clone(),
        )
        self.rows = cache.rows
        assert owner.logits is not None, "a step of this kind has run"
        shared = owner.logits[: len(ids)]
        self.replay = owner.capture(
            lambda: shared.copy_(owner.decode_step(ids, positions, mask, cache))
        )

    def __call__(self, *inputs: Tensor) -> Tensor:
        for buffer, value in zip(self.inputs, inputs, strict=True):
            buffer.copy_(value)
        return self.replay().clone()  # the next replay overwrites it
