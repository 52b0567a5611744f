"""How many threads a run computes with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ragen_pl import threads


@pytest.fixture(autouse=True)
def number_of_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def timed(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], disturbed: tuple[int, ...] = ()
) -> None:
    """Make a step take what ``seconds`` says, ten times as long in the disturbed measurements."""
    count = 0

    def time_step(_: object) -> float:
        nonlocal count
        count += 1
        return seconds[torch.get_num_threads()] * (10 if count in disturbed else 1)

    monkeypatch.setattr(threads, "_time", time_step)
    monkeypatch.setattr(threads, "_PAUSE", 0.0)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({1: 0.03, 2: 0.016, 4: 0.009}, 4),
        ({1: 0.03, 2: 0.029, 4: 0.028}, 1),  # not worth what it costs others
        ({1: 0.03, 2: 0.02, 4: 0.3}, 2),  # cores that are busy
    ],
)
def test_the_fastest_number_is_set(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int
) -> None:
    timed(monkeypatch, seconds)
    assert threads.choose_threads(cores=5) == (expected, seconds)
    assert torch.get_num_threads() == expected


def test_a_moments_disturbance_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run once computed with one thread of two to its end, because another program had woken for
    a quarter of a second."""
    timed(monkeypatch, {1: 0.03, 2: 0.016}, disturbed=(2, 6))
    assert threads.choose_threads(cores=2)[0] == 2


def test_a_trial_that_was_disturbed_whole_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of a fresh installation once took twice its time: for more than a second after it,
    two threads were no faster than one."""
    timed(monkeypatch, {1: 0.03, 2: 0.016}, disturbed=(2, 4, 6, 8, 10))
    assert threads.choose_threads(cores=2) == (2, {1: 0.03, 2: 0.016})


def test_what_is_asked_for_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads.decide_threads(2) == torch.get_num_threads() == 2
    assert threads.decide_threads("auto") == torch.get_num_threads() == 1


def test_one_core_has_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {1: 0.03})
    assert threads.choose_threads(cores=1) == (1, {1: 0.03})
