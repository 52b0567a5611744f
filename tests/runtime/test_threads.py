"""The number of threads: the initial choice, and its adaptation during a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from ragen_pl.runtime import threads


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    with threads.torch_threads(torch.get_num_threads()):
        yield


def timed(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], disturbed: tuple[int, ...] = ()
) -> None:
    """Make a step take ``seconds`` by number of threads, ten times as long where disturbed."""
    count = 0

    def time_step(_: object, __: float = 0.0) -> float:
        nonlocal count
        count += 1
        return seconds[torch.get_num_threads()] * (10 if count in disturbed else 1)

    monkeypatch.setattr(threads, "_time", time_step)
    monkeypatch.setattr(threads, "_PAUSE", 0.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 0.03, 2: 0.016, 4: 0.009}, 4),
        ({1: 0.03, 2: 0.029, 4: 0.028}, 1),  # too small a gain for the cores it takes
        ({1: 0.03, 2: 0.02, 4: 0.3}, 2),  # busy cores
    ],
)
def test_the_fastest_number_is_set(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int
) -> None:
    timed(monkeypatch, seconds)
    assert threads.choose_threads(cores=5) == (expected, seconds)
    assert torch.get_num_threads() == expected


def test_a_short_disturbance_does_not_change_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run once used one thread of two to its end, because another program had been active for a
    quarter of a second."""
    timed(monkeypatch, {1: 0.03, 2: 0.016}, disturbed=(2, 6))
    assert threads.choose_threads(cores=2)[0] == 2


def test_a_fully_disturbed_trial_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run right after an installation once took twice its time: for more than a second, two
    threads were no faster than one."""
    timed(monkeypatch, {1: 0.03, 2: 0.016}, disturbed=(2, 4, 6, 8, 10))
    assert threads.choose_threads(cores=2) == (2, {1: 0.03, 2: 0.016})


def test_a_fixed_number_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.configure_threads(2) == torch.get_num_threads() == 2
    assert threads.configure_threads("auto") == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    assert threads.fixed_threads("auto") is None, "no number to set"


def test_one_core_has_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {1: 0.03})
    assert threads.choose_threads(cores=1) == (1, {1: 0.03})


class Machine:
    """A fake machine with a changing load, as a tuner sees it."""

    def __init__(self) -> None:
        self.now = self.waited = 0.0
        self.others_are_busy = False
        self.trials: list[list[int]] = []

    def run(self, tuner: threads.ThreadTuner, seconds: float) -> list[int]:
        """Advance the clock in steps of a second; return the number of threads after each."""
        seen = []
        for _ in range(int(seconds)):
            self.now += 1.0
            if self.others_are_busy and torch.get_num_threads() > 1:
                self.waited += 0.6
            tuner.look()
            seen.append(torch.get_num_threads())
        return seen

    def trial(self, candidates: Sequence[int]) -> dict[int, float]:
        self.trials.append(list(candidates))
        slow = 20.0 if self.others_are_busy else 1.0
        return {n: 0.1 if n == 1 else 0.06 * slow for n in candidates}

    def tuner(self, cores: int = 2, reports_waiting: bool = True) -> threads.ThreadTuner:
        torch.set_num_threads(cores)
        return threads.ThreadTuner(
            cores,
            clock=lambda: self.now,
            waited=lambda: self.waited if reports_waiting else None,
            trial=self.trial,
        )


def test_a_quiet_machine_is_not_disturbed() -> None:
    machine = Machine()
    assert set(machine.run(machine.tuner(), 600)) == {2}
    assert machine.trials == []


@pytest.mark.parametrize("reports_waiting", [True, False])
def test_a_run_follows_a_machine_that_becomes_busy_and_quiet(reports_waiting: bool) -> None:
    """Without it, iterations took 20 to 30 times as long once another program took a core."""
    machine = Machine()
    tuner = machine.tuner(reports_waiting=reports_waiting)
    machine.run(tuner, 60)
    machine.others_are_busy = True
    seen = machine.run(tuner, 200)
    assert seen[-1] == 1
    if reports_waiting:
        assert seen.index(1) < 15
    machine.others_are_busy = False
    assert machine.run(tuner, 200)[-1] == 2


def test_trials_that_change_nothing_become_rare() -> None:
    machine = Machine()
    tuner = machine.tuner()
    machine.others_are_busy = True
    machine.run(tuner, 3600)
    assert len(machine.trials) < 30  # half a second each: less than 1 % of the time


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_trial_can_be_made_while_evaluating(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    """Lightning validates without gradients; a trial computes gradients."""
    with mode(), torch.autocast("cpu", torch.bfloat16):
        assert set(threads._brief_trial([1, 2])) == {1, 2}
        assert not torch.is_grad_enabled()


def test_a_trial_that_fails_leaves_the_number_as_it_was() -> None:
    machine = Machine()
    tuner = machine.tuner()
    machine.others_are_busy = True

    def fail(candidates: Sequence[int]) -> dict[int, float]:
        torch.set_num_threads(1)
        raise KeyboardInterrupt

    tuner._trial = fail
    with pytest.raises(KeyboardInterrupt):
        machine.run(tuner, 60)
    assert torch.get_num_threads() == 2


def test_the_current_number_is_tried_even_if_it_is_no_candidate() -> None:
    machine = Machine()
    tuner = machine.tuner(cores=4)
    torch.set_num_threads(3)  # from the checkpoint of another machine
    machine.run(tuner, 30)
    assert machine.trials[0] == [1, 2, 3, 4]


def test_a_trial_looks_at_half_and_twice_as_many() -> None:
    machine = Machine()
    tuner = machine.tuner(cores=16)
    torch.set_num_threads(4)
    machine.run(tuner, 30)
    assert machine.trials[0] == [2, 4, 8]
    assert machine.tuner(cores=1).candidates == [1]


def test_waiting_for_a_core_is_seen() -> None:
    """Two threads that share one core wait for it half of the time each."""
    before = threads.seconds_waited()
    reports_waiting = Path("/proc/self/schedstat").exists()  # absent in some kernels
    assert (before is not None) == reports_waiting
    if before is None:
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    code = "import time\nend = time.time() + 0.5\nwhile time.time() < end: pass"
    try:
        other = subprocess.Popen([sys.executable, "-c", code])
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            pass
        other.wait()
    finally:
        os.sched_setaffinity(0, cores)
    after = threads.seconds_waited()
    assert after is not None
    assert after - before > 0.05


def test_ranks_share_a_machines_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    timed(monkeypatch, {1: 0.03, 2: 0.016, 4: 0.009})
    assert threads.configure_threads("auto", processes=2) == 2
    assert threads.configure_threads("auto", processes=8) == 1


def test_a_load_that_comes_and_goes_changes_little() -> None:
    machine = Machine()
    tuner = machine.tuner()
    changes, before = 0, torch.get_num_threads()
    for turn in range(60):
        machine.others_are_busy = turn % 2 == 0
        for threads_now in machine.run(tuner, 15):
            changes += threads_now != before
            before = threads_now
    assert changes <= 30
    machine = Machine()
    tuner = machine.tuner()
    noise = iter([0.100, 0.085, 0.095, 0.11] * 200)
    machine.others_are_busy = True
    tuner._trial = lambda candidates: {n: next(noise) for n in candidates}
    assert set(machine.run(tuner, 600)) == {2}
