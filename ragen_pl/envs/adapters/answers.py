"""Which answers may be scored: some scorers of reasoning-gym evaluate the answer as Python.

A policy samples any text, so that an answer to such a task could call any function, or compute a
power that never ends. What is refused here is never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

LONGEST = 10_000
"""Characters of the longest answer that is scored."""
_LONGEST_EXPRESSION = 300
_WORD = r"[A-Za-z]\w*"
_TOKEN = re.compile(rf"\s+|{_WORD}|\d+(?:\.\d+)?|[-+*/(),]")
_LONG_NUMBER = re.compile(r"\d{21}")
_FUNCTIONS = frozenset(("sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "sqrt", "pi"))
_POWER = re.compile(r"\*\*\s*")
_EXPONENT = re.compile(r"(?:-?\d{1,2}(?![\w.])|\(-?\d{1,2}\)|\(-?\d{1,2}/\d{1,2}\))(?!\s*\*\*)")


def is_number_expression(answer: str) -> bool:
    """Return whether an answer is a sum, product or quotient of numbers, without powers."""
    return _is_expression(answer) and not re.search(r"[A-Za-z]|\*\*", answer)


def is_expression(answer: str) -> bool:
    """Return whether an answer is an expression of variables of one letter and common functions.

    Bases of powers are single numbers and names, exponents have up to two digits.
    """
    words = re.findall(_WORD, answer)
    known = all(len(word) == 1 or word in _FUNCTIONS for word in words)
    small = all(_EXPONENT.match(answer, power.end()) for power in _POWER.finditer(answer))
    nested = re.search(r"\)\s*\*\*", answer) is not None
    return _is_expression(answer) and known and small and not nested


def _is_expression(answer: str) -> bool:
    """Return whether an answer is made of words, numbers, operators and brackets only.

    Tokens are removed one after the other, in linear time: one pattern for the whole answer would
    try every way to divide it.
    """
    is_short = len(answer) <= _LONGEST_EXPRESSION and not _LONG_NUMBER.search(answer)
    return is_short and not _TOKEN.sub("", answer)


def is_literal(answer: str) -> bool:
    """Return whether an answer that parses as Python is nothing but lists of constants."""
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True  # evaluating it raises before anything runs
    plain = (ast.Expression, ast.List, ast.Tuple, ast.Constant, ast.Name, ast.Load)
    signed = (ast.UnaryOp, ast.USub)
    return all(isinstance(node, (*plain, *signed)) for node in ast.walk(tree))


EVALUATED: Mapping[str, Callable[[str], bool]] = {
    "countdown": is_number_expression,
    "puzzle24": is_number_expression,
    "simple_integration": is_expression,
    "intermediate_integration": is_expression,
    "polynomial_multiplication": is_expression,
    "string_insertion": is_literal,
    "spiral_matrix": is_literal,
    "binary_matrix": is_literal,
    "n_queens": is_literal,
}
"""Tasks whose scorers evaluate the answer, and which answers they may see."""


def may_be_scored(task: str, answer: str) -> bool:
    """Return whether an answer may be passed to the scorer of a task."""
    if len(answer) > LONGEST or "\x00" in answer:
        return False
    allowed = EVALUATED.get(task)
    return allowed is None or allowed(answer)
