"""Choose how many threads PyTorch computes with, by trying."""

from __future__ import annotations

import os
import time
from statistics import fmean, median

import torch
from torch import nn

_GAIN = 0.9
"""More threads must take less than this share of the time of fewer: they also cost others."""
_SECONDS = 0.1
"""Spent on each candidate in a round."""
_ROUNDS = 5
"""Odd. What disturbs the machine for a moment must not decide how a run of hours computes."""
_TRIALS = 3
"""Where not all cores win, they are tried again, a while later: what an installation leaves behind
can keep a core busy for seconds."""
_PAUSE = 2.0
"""Seconds between trials."""


def usable_cores() -> int:
    """Count the cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decide_threads(asked: int | str) -> int:
    """Set the number of threads and say which.

    Args:
        asked: A number, or ``auto``: what ``OMP_NUM_THREADS`` says, and where it says nothing the
            fastest number by trial.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    if asked == "auto" and given.isdigit():
        asked = int(given)
    if asked != "auto":
        torch.set_num_threads(int(asked))
        return int(asked)
    chosen, times = choose_threads()
    tried = ", ".join(f"{count}: {1000 * seconds:.1f} ms" for count, seconds in times.items())
    print(f"threads: {chosen} (a small training step took, by threads, {tried})")
    return chosen


def choose_threads(cores: int | None = None) -> tuple[int, dict[int, float]]:
    """Time a small training step with 1, 2, 4, … threads and set the fastest.

    Several threads wait for one another after every operation; on a machine whose cores are busy
    that is many times slower than one thread alone.

    Returns:
        The number now set, and the seconds of one step per candidate.
    """
    limit = usable_cores() if cores is None else cores
    candidates = [1 << power for power in range(limit.bit_length())]
    step = _training_step()
    times = _trial(step, candidates)
    for _ in range(_TRIALS - 1):
        if _fastest(times) == candidates[-1]:
            break
        time.sleep(_PAUSE)
        again = _trial(step, candidates)
        times = {count: min(times[count], again[count]) for count in candidates}
    chosen = _fastest(times)
    torch.set_num_threads(chosen)
    return chosen, times


def _trial(step: _Step, candidates: list[int]) -> dict[int, float]:
    """Return the seconds of a step per number of threads: medians of rounds that take turns."""
    rounds: dict[int, list[float]] = {count: [] for count in candidates}
    for _ in range(_ROUNDS):
        for count, seconds in rounds.items():
            torch.set_num_threads(count)
            seconds.append(_time(step))
    return {count: median(seconds) for count, seconds in rounds.items()}


def _fastest(times: dict[int, float]) -> int:
    """Return the fewest threads that no greater number beats by enough."""
    chosen = 1
    for count in times:
        if times[count] < _GAIN * times[chosen]:
            chosen = count
    return chosen


def _time(step: _Step) -> float:
    step()  # the first run with a new number of threads starts them
    runs: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(runs) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        step()
        runs.append(time.perf_counter() - begin)
        if len(runs) >= 3 and sum(runs) > 10 * _SECONDS:
            break
    return fmean(runs)  # not the median: threads that wait for a busy core show in the tail


class _Step:
    """Sample a few tokens and train once with a block like the embedded model's."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(8, 128, 192, generator=generator)
        self.attention = nn.Linear(192, 3 * 192)
        self.norm = nn.LayerNorm(192)
        self.mlp = nn.Sequential(nn.Linear(192, 512), nn.SiLU(), nn.Linear(512, 192))

    def __call__(self) -> None:
        query, key, value = self.attention(self.norm(self.inputs)).chunk(3, dim=-1)
        mixed = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
        self.mlp(mixed).square().mean().backward()
        with torch.no_grad():
            for _ in range(20):
                self.mlp(self.norm(mixed[:, 0]))


def _training_step() -> _Step:
    with torch.random.fork_rng(devices=[]):
        return _Step()
