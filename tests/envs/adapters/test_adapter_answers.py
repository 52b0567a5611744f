"""Answers that may be scored: right ones are, and none that could run code or never end."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.adapters.answers import EVALUATED, may_be_scored

HARMLESS = {
    "countdown": ("49*(85 - 1)/14 - 42 - 73", "7", "(1+2)*3/4", "-3 + 2.5"),
    "puzzle24": ("(8 - 2)*4",),
    "simple_integration": ("2*x**3/3 - x**(-2) + C", "sin(x)*exp(2*x) + C", "x**(3/2) + C"),
    "polynomial_multiplication": ("6*x**4 + 3*x**3 - x", "x**12*y**2"),
    "binary_matrix": ("0 1\n1 0", "[[0, 1], [1, 0]]"),
    "n_queens": ("Q _\n_ Q", "[['Q', '_'], ['_', 'Q']]", "[-1]"),
    "gsm_symbolic": ("42", "anything at all; it is only compared"),
}
HOSTILE = {
    "countdown": (
        "9**9**9",
        "9 ** 9",
        "__import__('os').getpid()",
        "factorial(10)",
        "x",
        "1.real",
        "9" * 30,
        "1;2",
        "[1]",
        "0x10",
        "5!",
        "a" * 299 + "!",
        "1 " * 400,
    ),
    "simple_integration": (
        "x**99999",
        "x**9**9",
        f"9**9{' ' * 40}**9",
        "x**x",
        "(x**99)**99",
        "x**(9**9)",
        "x**-(9)",
        "factorial(99)",
        "x.func",
        "lambda x",
        "'x'",
        "x^2",
    ),
    "binary_matrix": ("exit()", "[x for x in y]", "(1).real", "2**99", "f'{x}'", "[].append"),
    "gsm_symbolic": ("4\x002", "4" * 10_001),
}


def pairs(answers: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(task, answer) for task, given in answers.items() for answer in given]


@pytest.mark.parametrize(("task", "answer"), pairs(HARMLESS))
def test_answers_in_the_tasks_form_are_scored(task: str, answer: str) -> None:
    assert may_be_scored(task, answer)


@pytest.mark.parametrize(("task", "answer"), pairs(HOSTILE))
def test_answers_that_could_do_harm_are_not(task: str, answer: str) -> None:
    assert not may_be_scored(task, answer)


@given(text=st.text(alphabet="a0 *+.()[]'\n", max_size=400))
def test_the_judgment_takes_no_time(text: str) -> None:
    began = time.perf_counter()
    for task in EVALUATED:
        may_be_scored(task, text)
    assert time.perf_counter() - began < 1.0
