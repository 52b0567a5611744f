"""Final answers: where a worked solution states its own, and which two are equal."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_MARKS = ("####", "The answer is:")
"""What stands before the final answer in GSM8K's and in MetaMathQA's solutions."""
_CALCULATION = re.compile(r"<<[^<>]*>>")
"""GSM8K's annotations for a calculator."""
_LONGEST_PLAIN = 200
"""Characters of the longest answer without a mark; what is longer is a solution that states
none."""
_LONGEST_NUMBER = 100

_WRAPPED = re.compile(r"\$(.*)\$|\\\((.*)\\\)|\\boxed\{(.*)\}", re.DOTALL)
_SPACE = re.compile(r"\\[!,;: ]")
_FRACTION = re.compile(r"\\frac(?:\{([^{}]*)\}\{([^{}]*)\}|\s*(\d)\s*(\d))", re.ASCII)
_CURRENCY = re.compile(r"^([-+]?)\s*\\?[$€£]\s*")
_PERCENT = re.compile(r"\s*\\?%$")
_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_VALUE = re.compile(
    rf"(?P<sign>[-+]?)\s*"
    rf"(?:(?:(?P<whole>\d+)\s+)?(?P<top>{_NUMBER})\s*/\s*(?P<bottom>{_NUMBER})|(?P<one>{_NUMBER}))",
    re.ASCII,
)


class WorkedSolution(NamedTuple):
    """A solution in words and the final answer it comes to."""

    reasoning: str
    answer: str


class _Value(NamedTuple):
    number: Fraction
    is_percent: bool

    @property
    def readings(self) -> set[Fraction]:
        return {self.number, self.number / 100} if self.is_percent else {self.number}


def solution_in(text: str, *, may_be_plain: bool) -> WorkedSolution | None:
    """Return what is before and behind the last mark of a final answer; None if there is none.

    Args:
        text: The solution.
        may_be_plain: Whether a short text without a mark is an answer itself.
    """
    place, mark = max((text.rfind(mark), mark) for mark in _MARKS)
    if place >= 0:
        before, answer = text[:place], text[place + len(mark) :].strip()
        for other in _MARKS:  # MetaMathQA's rewrites of GSM8K have both
            before = before.partition(other)[0]
        return WorkedSolution(_CALCULATION.sub("", before).strip(), answer) if answer else None
    answer = text.strip()
    is_short = 0 < len(answer) <= _LONGEST_PLAIN and "\n" not in answer
    return WorkedSolution("", answer) if may_be_plain and is_short else None


def are_equal(answer: str, other: str) -> bool:
    """Return whether two answers are equal.

    Numbers are compared by their exact values. A percentage is equal to its number and to its
    hundredth (50% to 50 and to 0.5), but two percentages are equal only if their numbers are. All
    else is compared as text, whatever its case and spaces (RAGEN).
    """
    equal = are_equal_numbers(answer, other)
    return _joined(_bare(answer)) == _joined(_bare(other)) if equal is None else equal


def are_equal_numbers(answer: str, other: str) -> bool | None:
    """Return whether two numbers are equal, as ``are_equal`` compares them; None unless both
    answers are single numbers."""
    left, right = _value(_bare(answer)), _value(_bare(other))
    if left is None or right is None:
        return None
    if left.is_percent and right.is_percent:
        return left.number == right.number
    return bool(left.readings & right.readings)


def _bare(answer: str) -> str:
    r"""Return an answer without what LaTeX puts around it: ``$…$``, ``\(…\)`` and ``\boxed{…}``.

    A full stop at the end goes, too, and fractions and minus signs have one way to be written.
    """
    bare, before = answer.strip(), ""
    while bare != before:
        before = bare
        bare = bare.removesuffix(".").strip()
        wrapped = _WRAPPED.fullmatch(bare)
        if wrapped is not None:
            bare = next(part for part in wrapped.groups() if part is not None).strip()
    bare = re.sub(r"\\[dt]frac", r"\\frac", bare.replace("−", "-"))
    return _SPACE.sub("", bare.replace("{,}", ","))


def _joined(text: str) -> str:
    return "".join(text.lower().split())


def _value(bare: str) -> _Value | None:
    """Return the value of an answer; None if it is no single number."""
    if len(bare) > _LONGEST_NUMBER:
        return None
    text, percents = _PERCENT.subn("", _CURRENCY.sub(r"\1", bare))
    found = _VALUE.fullmatch(_FRACTION.sub(_with_slash, text).strip())
    if found is None:
        return None
    if found["one"] is not None:
        number = _fraction(found["one"])
    elif _fraction(found["bottom"]) == 0:
        return None
    else:
        number = _fraction(found["top"]) / _fraction(found["bottom"]) + int(found["whole"] or 0)
    return _Value(-number if found["sign"] == "-" else number, percents > 0)


def _with_slash(fraction: re.Match[str]) -> str:
    top, bottom = (part for part in fraction.groups() if part is not None)
    return f" {top}/{bottom}"


def _fraction(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))
