"""Final answers of mathematics: which are equal, and where solutions state them."""

from __future__ import annotations

from itertools import combinations

import pytest

from ragen_pl.envs.math_qa.answers import WorkedSolution, are_equal, solution_in

SAME = [
    ("1000", "1,000", "1000.0", "$1,000", "1{,}000", r"1,\!000", "+1000.", " 1000 ", r"\$1000"),
    ("0.5", ".5", "1/2", r"\frac{1}{2}", r"\dfrac12", r"$\frac{1}{2}$", r"\boxed{\tfrac{1}{2}}"),
    ("-3.5", "−3.5", "-7/2", r"-\frac{7}{2}", r"\frac{-7}{2}", "-3 1/2", r"-3\frac{1}{2}"),
    ("$5", "5", "5.00", r"\(5\)", "$5$", "€5", "10 / 2"),
    ("-5", "-$5", "$-5", "- 5"),
    (r"x \in (1, 2]", r"X\in(1,2]", r"$x\in(1,2]$"),
    ("Monday", "monday.", "MON DAY"),
    (r"\frac{\pi}{2}", r"\dfrac{\pi}{2}", r"\frac{\pi}{ 2 }"),
]
"""Answers that are equal in each row, and not to those of the others."""


@pytest.mark.parametrize("row", SAME)
def test_what_is_written_otherwise_is_equal(row: tuple[str, ...]) -> None:
    for one, other in combinations(row, 2):
        assert are_equal(one, other), (one, other)
        assert are_equal(other, one), (one, other)


def test_what_differs_is_not_equal() -> None:
    for row, other_row in combinations(SAME, 2):
        assert not any(are_equal(one, other) for one in row for other in other_row)
    for one, other in (
        *(("0.333", "1/3"), ("1,00", "100"), ("1 1/2", "11/2"), ("5 apples", "5"), ("", "5")),
        *(("1/0", "0"), ("--5", "5"), ("1e3", "1000"), ("٣", "3"), ("7.0001", "7"), ("1", "-1")),
    ):
        assert not are_equal(one, other), (one, other)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("50%", "50", True),
        ("50%", "0.5", True),
        (r"50\%", "1/2", True),
        ("50%", "50.0 %", True),
        ("50%", "5", False),
        ("50%", "0.5%", False),
        ("50", "0.5", False),
    ],
)
def test_percentages(one: str, other: str, equal: bool) -> None:
    assert are_equal(one, other) is are_equal(other, one) is equal


def test_numbers_of_any_length_are_compared() -> None:
    long = "9" * 5000
    assert are_equal(long, long)
    assert not are_equal(long, "9" * 5001)
    assert not are_equal("1" * 99, "1" * 98 + "2")


@pytest.mark.parametrize(
    ("text", "may_be_plain", "solution"),
    [
        ("It is 2+3.\nThe answer is: 5", False, WorkedSolution("It is 2+3.", "5")),
        ("So 5.\n#### 5\nThe answer is: 5", False, WorkedSolution("So 5.", "5")),
        ("48/2 = <<48/2=24>>24 clips.\n#### 24", True, WorkedSolution("48/2 = 24 clips.", "24")),
        ("The answer is: 1? No.\nThe answer is: 2", False, WorkedSolution("", "2")),
        (r"\frac{1}{2}", True, WorkedSolution("", r"\frac{1}{2}")),
        ("5", False, None),
        ("It is five.\nFive.", True, None),
        ("x" * 201, True, None),
        ("Thinking.\n####", True, None),
        ("The answer is: ", False, None),
        ("  ", True, None),
    ],
)
def test_the_last_mark_is_before_the_answer(
    text: str, may_be_plain: bool, solution: WorkedSolution | None
) -> None:
    assert solution_in(text, may_be_plain=may_be_plain) == solution
