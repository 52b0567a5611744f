"""Record a step of decoding once, and replay it: what starts its operations is then the GPU.

A step of a model of 24 layers is several hundred kernels of a few microseconds each, and to start
one from Python takes longer than that.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ragen_pl.models.kernels.kv_cache import RaggedCache
from ragen_pl.rollout.engines.decode_step import DecodeStep

CAPTURED_STRIDE = 256
"""Slots by which masks grow where steps are recorded: each width is a recording of its own."""

Step = Callable[[], Tensor]
Capture = Callable[[Step], Step]
"""Run a step once, noting its operations and the places they read and write; return what runs
the same operations on the same places, and returns the same tensor."""


class GraphCapturer:
    """Record CUDA graphs that share one pool of memory: only one of them runs at a time, and what
    it leaves is copied before the next."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """Record a step.

        Raises:
            ValueError: when the step waits for the GPU, which a recording cannot.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which step environments, do not disturb it.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outcome = step()
        except RuntimeError as error:
            raise ValueError(
                "model.engine.cuda_graphs is true, but this model's step of decoding cannot be "
                f"recorded ({str(error).splitlines()[0]}): set it to false"
            ) from error

        def replay() -> Tensor:
            graph.replay()
            return outcome

        return replay


class GraphedDecodeStep:
    """Implement ``DecodeStep`` by recording each kind of step of one token when it comes for the
    second time, and replaying it from then on; wider blocks are read as they come.

    Steps are of a kind that have as many rows, as wide a mask, and the same buffers. Weights that
    autocast has cast live as long as its context: ``forget`` before it ends.
    """

    def __init__(self, reader: DecodeStep, record: Capture) -> None:
        self.reader, self.record = reader, record
        self.steps: dict[tuple[int, ...], _Captured | None] = {}

    def forget(self) -> None:
        """Drop all recordings."""
        self.steps = {}

    def __call__(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: RaggedCache) -> Tensor:
        if ids.shape[1] != 1:
            return self.reader(ids, positions, mask, cache)
        kind = (len(ids), cache.window.start, cache.reach, *cache.addresses())
        if kind not in self.steps:
            self.steps[kind] = None
            # Whatever a library sets up when it is first called is set up by this.
            return self.reader(ids, positions, mask, cache)
        step = self.steps[kind]
        if step is None:
            step = self.steps[kind] = _Captured(self, ids, positions, mask, cache)
        return step(ids, positions, mask, cache.slots)


class _Captured:
    """Hold a recorded step and the tensors that it reads, which must stay where they are."""

    def __init__(
        self,
        by: GraphedDecodeStep,
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
        self.replay = by.record(lambda: by.reader(ids, positions, mask, cache))

    def __call__(self, *inputs: Tensor) -> Tensor:
        for place, value in zip(self.inputs, inputs, strict=True):
            place.copy_(value)
        return self.replay().clone()  # the next replay writes over it
