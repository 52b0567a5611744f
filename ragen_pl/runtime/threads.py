"""The number of PyTorch's threads: chosen by timing, and adapted during a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor, nn

from ragen_pl.runtime.parallel import in_threads
from ragen_pl.runtime.wait_policy import describe_waiting

_GAIN = 0.9
"""A step with more threads must take less than this fraction of the time with fewer, because more
threads take cores from other programs."""
_SECONDS = 0.1
"""Seconds spent on each candidate in a round."""
_ROUNDS = 5
"""Rounds of a trial, an odd number. The median over rounds ignores a short disturbance, which must
not slow a run of hours."""
_TRIALS = 3
"""Maximum number of trials. If fewer threads than cores win, the trial is repeated after a pause,
because leftovers of an installation can keep a core busy for seconds."""
_PAUSE = 2.0
"""Seconds between trials."""
_LOOK_EVERY = 2.0
"""Seconds between two readings of how long threads waited for a core."""
_CONTENDED = 0.1
"""The machine counts as contended when threads wait for a core for more than this many seconds per
second."""
_CHANGE_GAIN = 0.8
"""During a run, a step with another number of threads must take less than this fraction of the time
with the current number, because under a changing load two trials of the same number differ by more
than trials of different numbers."""
_FIRST_GAP, _LONGEST_GAP = 10.0, 160.0
"""Seconds between two trials of a run: at first, and at most. A trial that changes nothing doubles
the gap, one that changes the number halves it. A trial takes about half a second."""


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with so many threads, and afterwards with as many as before, whatever is set in
    between."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def configure_threads(setting: int | str, processes: int = 1) -> int:
    """Set the number of threads and return it; print it if it was chosen by timing.

    Args:
        setting: Number of threads, or ``auto``, which means ``OMP_NUM_THREADS`` if that is set and
            the fastest number if not.
        processes: Processes of this run on this machine, which share its cores.
    """
    fixed = fixed_threads(setting)
    if fixed is not None:
        torch.set_num_threads(fixed)
        return fixed
    chosen, times = choose_threads(max(1, usable_cores() // processes))
    tried = ", ".join(f"{count}: {1000 * seconds:.1f} ms" for count, seconds in times.items())
    print(
        f"threads: {chosen} (a small training step took, by threads, {tried}); {describe_waiting()}"
    )
    return chosen


def fixed_threads(setting: int | str) -> int | None:
    """Return the number that the user fixed, by key or ``OMP_NUM_THREADS``; None for ``auto``."""
    if setting != "auto":
        return int(setting)
    variable = os.environ.get("OMP_NUM_THREADS", "")
    return (int(variable) or None) if variable.isdecimal() else None


def choose_threads(cores: int | None = None) -> tuple[int, dict[int, float]]:
    """Time a small training step with 1, 2, 4, … threads and set the fastest number.

    Threads wait for one another after every operation. On a machine with busy cores, several
    threads are therefore many times slower than a single one.

    Returns:
        The number that was set, and the seconds of a step by number of threads.
    """
    candidates = _candidates(usable_cores() if cores is None else cores)
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


def _candidates(cores: int) -> list[int]:
    return [1 << power for power in range(cores.bit_length())]


class ThreadTuner:
    """Adaptation of the number of threads to the load of the machine.

    While several threads wait for cores that other programs occupy, a trial decides between half
    and twice as many. While there are fewer threads than cores, a trial from time to time finds out
    whether cores have become free.

    Args:
        cores: Largest number of threads.
        clock: Function that returns the time in seconds.
        waited: Function that returns the seconds that all threads of the process have waited for a
            core so far; None if the system does not report it, in which case trials are made by
            time only.
        trial: Function that returns the seconds of a step by number of threads.
    """

    def __init__(
        self,
        cores: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float | None] | None = None,
        trial: Callable[[Sequence[int]], dict[int, float]] | None = None,
    ) -> None:
        self.candidates = _candidates(cores)
        self._clock = clock
        self._waited = waited or seconds_waited
        self._trial = trial or _brief_trial
        self._looked, self._waited_before = clock(), self._waited()
        self._gap = _FIRST_GAP
        self._next_trial = clock() + self._gap

    def look(self) -> dict[int, float] | None:
        """Change the number of threads if another is faster; frequent calls cost nothing.

        Returns:
            The seconds of a step by number of threads if the number was changed, else None.
        """
        now = self._clock()
        if len(self.candidates) == 1 or now - self._looked < _LOOK_EVERY:
            return None
        waited, before = self._waited(), self._waited_before
        share = (
            None if waited is None or before is None else (waited - before) / (now - self._looked)
        )
        self._looked, self._waited_before = now, waited
        threads = torch.get_num_threads()
        could_be_fewer = threads > 1 and (share is None or share > _CONTENDED)
        could_be_more = threads < self.candidates[-1]
        if now < self._next_trial or not (could_be_fewer or could_be_more):
            return None
        near = sorted({threads, *(n for n in self.candidates if threads // 2 <= n <= 2 * threads)})
        chosen = threads
        try:
            times = self._trial(near)
            best = min(times, key=times.__getitem__)
            chosen = best if times[best] < _CHANGE_GAIN * times[threads] else threads
        finally:
            torch.set_num_threads(chosen)
        # Waiting during the trial is not waiting of the run.
        self._looked, self._waited_before = self._clock(), self._waited()
        gap = self._gap / 2 if chosen != threads else 2 * self._gap
        self._gap = min(max(gap, _FIRST_GAP), _LONGEST_GAP)
        self._next_trial = self._looked + self._gap
        return times if chosen != threads else None


def seconds_waited() -> float | None:
    """Return how long this process's threads have been ready to run without a core.

    The time is summed over the live threads; None if the system does not report it (Linux does).
    """
    total = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # no such file, or a thread ended in between
        return None
    return total / 1e9


def _brief_trial(candidates: Sequence[int]) -> dict[int, float]:
    """Run a short trial during a run, even if that has disabled gradients or enabled autocast."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return _trial(_training_step(), list(candidates), rounds=3, seconds=_SECONDS / 2)


def _trial(
    step: _Step, candidates: list[int], rounds: int = _ROUNDS, seconds: float = _SECONDS
) -> dict[int, float]:
    """Return the seconds of a step by number of threads: medians over rounds of all candidates."""
    times: dict[int, list[float]] = {count: [] for count in candidates}
    for _ in range(rounds):
        for count, measured in times.items():
            torch.set_num_threads(count)
            measured.append(_time(step, seconds))
    return {count: median(measured) for count, measured in times.items()}


def _fastest(times: dict[int, float]) -> int:
    """Return the smallest number of threads that no larger one beats by the required gain."""
    chosen = min(times)
    for count in times:
        if times[count] < _GAIN * times[chosen]:
            chosen = count
    return chosen


def _time(step: _Step, seconds: float = _SECONDS) -> float:
    step()  # the first step with a new number of threads starts them
    runs: list[float] = []
    end = time.perf_counter() + seconds
    while len(runs) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        step()
        runs.append(time.perf_counter() - begin)
        if len(runs) >= 3 and sum(runs) > 10 * seconds:
            break
    return fmean(runs)  # not the median: waiting for a busy core shows in the slowest runs


class _Step:
    """A training step and the sampling of a few tokens, with a block like the embedded model's."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(8, 128, 192, generator=generator)
        self.attention = nn.Linear(192, 3 * 192)
        self.norm = nn.LayerNorm(192)
        self.mlp = nn.Sequential(nn.Linear(192, 512), nn.SiLU(), nn.Linear(512, 192))

    def __call__(self) -> None:
        parts = self.inputs.chunk(torch.get_num_threads())
        mixed = torch.cat(in_threads([partial(self._train, part) for part in parts]))
        with torch.no_grad(), torch_threads(1):  # as the sampler of a narrow model
            for _ in range(20):
                self.mlp(self.norm(mixed[:, 0]))

    def _train(self, rows: Tensor) -> Tensor:
        """Take a part of the rows forward and backward, as the networks do."""
        query, key, value = self.attention(self.norm(rows)).chunk(3, dim=-1)
        mixed: Tensor = torch.softmax(query @ key.transpose(1, 2), dim=-1) @ value
        loss = self.mlp(mixed).square().mean()
        torch.autograd.grad(loss, [*self.attention.parameters(), *self.mlp.parameters()])
        return mixed.detach()


def _training_step() -> _Step:
    with torch.random.fork_rng(devices=[]):
        return _Step()
