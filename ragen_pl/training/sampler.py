"""Sampling from a policy whose weights change during the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ragen_pl.distributed.sharding import summon_full_params
from ragen_pl.models.policy import Policy, evaluation_mode
from ragen_pl.rollout.engines.base import Sampler
from ragen_pl.types import Completion, Request, Sampling


class PolicySampler:
    """An engine whose cache is dropped when the policy's weights change.

    Args:
        policy: The network whose model the engine decodes.
        build_engine: Function that builds the engine; called once, with the maximum context.
    """

    def __init__(self, policy: Policy, build_engine: Callable[[int], Sampler]) -> None:
        self.policy, self._build_engine = policy, build_engine
        self._max_context = 0
        self.engine: Sampler | None = None
        self.version = -1
        """Version of the weights that the cache was computed with."""
        self.seconds = 0.0
        """Total time spent generating in this process."""

    @contextmanager
    def rollout_weights(self, max_context: int) -> Iterator[None]:
        """Unshard the weights, so that each rank generates as often and as long as it needs.

        On exit the memory of the engine's cache is freed.

        Args:
            max_context: Maximum tokens of a row, the same in every rollout of the run.
        """
        self._max_context = max_context
        with summon_full_params(self.policy):
            try:
                yield
            finally:
                if self.engine is not None:
                    self.engine.release()

    def __call__(
        self, requests: Sequence[Request], sampling: Sampling, version: int
    ) -> list[Completion]:
        """Generate completions, after dropping a cache of another version of the weights."""
        if self.engine is None:
            self.engine = self._build_engine(self._max_context)
        if self.version != version:
            self.engine.reset()
            self.version = version
        started = time.monotonic()
        with evaluation_mode(self.policy):  # checkpointed layers use no cache in training
            completions = self.engine(requests, sampling)
        self.seconds += time.monotonic() - started
        return completions

    def invalidate(self) -> None:
        """Drop the cache before the next request; call it after setting weights without an
        optimizer step."""
        self.version = -1
