"""The sampler's cache: dropped when the weights change, freed when the rollout ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

from ragen_pl.training.sampler import PolicySampler
from ragen_pl.types import Completion, Request, Sampling

GREEDY = Sampling(0.0, 4)


class Recorder:
    """A sampler that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        self.calls.append("sample")
        return []

    def reset(self) -> None:
        self.calls.append("reset")

    def release(self) -> None:
        self.calls.append("release")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def sampler(recorder: Recorder) -> PolicySampler:
    return PolicySampler(nn.Linear(1, 1), lambda _: recorder)  # type: ignore[arg-type]


def test_the_cache_is_dropped_once_per_version_of_the_weights(
    sampler: PolicySampler, recorder: Recorder
) -> None:
    for version in (0, 0, 1):
        sampler([], GREEDY, version=version)
    sampler.invalidate()
    sampler([], GREEDY, version=1)
    assert recorder.calls == ["reset", "sample", "sample", "reset", "sample", "reset", "sample"]


def test_memory_is_freed_when_the_rollout_ends(sampler: PolicySampler, recorder: Recorder) -> None:
    """Otherwise caches of evaluations would stay during the updates that follow."""
    with sampler.rollout_weights(64):
        sampler([], GREEDY, version=0)
        assert recorder.calls[-1] == "sample"
    assert recorder.calls[-1] == "release"
    recorder.calls.clear()
    with pytest.raises(KeyError), sampler.rollout_weights(64):
        raise KeyError
    assert recorder.calls == ["release"]


def test_the_engine_is_built_on_the_first_request(recorder: Recorder) -> None:
    def make(max_context: int) -> Recorder:
        raise AssertionError

    with PolicySampler(nn.Linear(1, 1), make).rollout_weights(64):  # type: ignore[arg-type]
        pass
