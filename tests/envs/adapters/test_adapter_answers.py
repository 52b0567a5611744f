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
    "intermediate_integration": (
        "3*cos(3*x + 6)**5/5 + C",
        "2*(4*x + 2)**(3/2)/3 + C",
        "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C",
        "exp(x)*sin(x) + exp(x)*cos(x) + C",
        "(1/2)*x**2 + (1/3)*x**3 + (1/4)*x**4 + (1/5)*x**5 + (1/6)*x**6 + C",
    ),
    "polynomial_multiplication": ("6*x**4 + 3*x**3 - x", "x**12*y**2"),
    "coin_flip": ("3.051757812e-05", "21/32", " 0.109375", "1,000", ""),
    "rubiks_cube": ("L D L' U2 R3", "F"),
    "rush_hour": ("F+1 K-12",),
    "propositional_logic": ("(¬Q ∨ P)", "P ∧ (Q → ¬¬R) ↔ S"),
    "codeio": ('{"s": "}[}}}{(]"}', '{"a": [[1, 2], {"b": null}]}', "42", "{", "}{"),
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
    "intermediate_integration": (
        "N(exp(x))",
        "x*sin(exp(exp(99)))",
        "x*sin((x + exp(x)))",
        "exp(9**99)",
        "exp(9999999)",
        "(x + 1)**10",
        "*".join("(x + 1)" for _ in range(5)),
        "x + y + z",
        "Integral(x, x)",
    ),
    "polynomial_multiplication": ("N(exp(exp(exp(99))))", "exp(x)", "S(9)", "(x + 1)**9"),
    "coin_flip": ("1e999999999", "1e-9999", "1e9,9,9,9", "1e1_0_0_0_0", "heads"),
    "rubiks_cube": ("R99999999", "R10"),
    "rush_hour": ("A+999999999", "A-100"),
    "propositional_logic": (
        "∧".join("abcdefghijklmnopqrstuvwxyz"),
        "∧".join("A" * n for n in range(1, 20)),
        "A ∧ A A",
        "A ∧ A() ∧ A(A)",
        "A ∧ A¬ ∧ ()A",
        "A) ∧ (A)",
        "¬" * 301 + "A",
        "",
    ),
    "codeio": (
        f'{{"a": {"[1, " * 12}1{"]" * 12}}}',
        f'The answer is {{"a": [{"1, " * 1000}1]}}.',
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


@pytest.mark.parametrize("task", sorted(EVALUATED.keys() - {"codeio", "polynomial_multiplication"}))
def test_right_answers_are_scored(task: str) -> None:
    factory = pytest.importorskip("reasoning_gym.factory", reason="needs the extra envs")
    for item in factory.create_dataset(task, seed=7, size=20):
        notes = item["metadata"]
        keys = ("example_correct_answer", "example_answer")
        answer = str(item["answer"] or next(filter(None, map(notes.get, keys)), ""))
        given_up = "Integral(" in answer  # reasoning-gym's own, where sympy found no integral
        assert may_be_scored(task, answer) != given_up or not answer, answer


@given(text=st.text(alphabet="a0 *+.()[]{}¬∧eA,'\n", max_size=400))
def test_the_judgment_takes_no_time(text: str) -> None:
    began = time.perf_counter()
    for task in EVALUATED:
        may_be_scored(task, text)
    assert time.perf_counter() - began < 1.0
