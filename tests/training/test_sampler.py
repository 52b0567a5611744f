"""Who samples is told when the weights have changed and when playing is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

from ragen_pl.training.sampler import PolicySampler
from ragen_pl.types import Completion, Request, Sampling

GREEDY = Sampling(0.0, 4)


class Recorder:
    """Be a sampler that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        self.told.append("sample")
        return []

    def reset(self) -> None:
        self.told.append("reset")

    def release(self) -> None:
        self.told.append("release")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def worker(recorder: Recorder) -> PolicySampler:
    return PolicySampler(nn.Linear(1, 1), lambda _: recorder)  # type: ignore[arg-type]


def test_new_weights_are_taken_over_once(worker: PolicySampler, recorder: Recorder) -> None:
    for version in (0, 0, 1):
        worker([], GREEDY, version=version)
    worker.invalidate()
    worker([], GREEDY, version=1)
    assert recorder.told == ["reset", "sample", "sample", "reset", "sample", "reset", "sample"]


def test_memory_is_given_back_when_playing_is_over(
    worker: PolicySampler, recorder: Recorder
) -> None:
    """Caches of evaluations once stayed through the updates that followed."""
    with worker.rollout_weights(64):
        worker([], GREEDY, version=0)
        assert recorder.told[-1] == "sample"
    assert recorder.told[-1] == "release"
    recorder.told.clear()
    with pytest.raises(KeyError), worker.rollout_weights(64):
        raise KeyError
    assert recorder.told == ["release"]


def test_nothing_is_made_before_it_is_needed(recorder: Recorder) -> None:
    def make(max_context: int) -> Recorder:
        raise AssertionError

    with PolicySampler(nn.Linear(1, 1), make).rollout_weights(64):  # type: ignore[arg-type]
        pass
