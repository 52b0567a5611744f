"""Which answers may be scored: some scorers of reasoning-gym evaluate the answer as Python.

A policy samples any text, so that an answer to such a task could call any function, or compute a
power that never ends. Other scorers make as many moves as the answer says, try all values of as
many variables as it names, or compare it in time that grows with a power of its length. What is
refused here is never evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

LONGEST = 10_000
"""Characters of the longest answer that is scored."""
_LONGEST_EXPRESSION = 300
_WORD = r"[A-Za-z]\w*"
_TOKEN = re.compile(rf"\s+|{_WORD}|\d+(?:\.\d+)?|[-+*/(),]")
_LONG_NUMBER = re.compile(r"\d{21}")
_FUNCTIONS = frozenset(("sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "sqrt", "pi"))
_SYMPY = frozenset("NOSQ")
"""Letters that are functions of sympy; ``N`` computes a number however large it is."""
_POWER = re.compile(r"\*\*\s*")
_EXPONENT = re.compile(r"(?:-?\d{1,2}(?![\w.])|\(-?\d{1,2}\)|\(-?\d{1,2}/\d{1,2}\))(?!\s*\*\*)")
_CALL_OR_BRACKET = re.compile(rf"({_WORD})?\s*\(|\)")
_ONE_DIGIT = re.compile(r"(?:-?\d(?![\w.])|\(-?\d(?:/\d)?\))(?!\s*\*\*)")
_UP_TO_29 = re.compile(r"(?:-?[12]?\d(?![\w.])|\(-?[12]?\d(?:/\d)?\))(?!\s*\*\*)")
_NUMBER_IN_BRACKETS = re.compile(r"\([-\d/\s]*\)")
_HUGE = re.compile(r"\d\s*\*\*|\d{7}")
_MOST_BRACKETS = 4
"""Brackets of an integral, those of numbers aside, as right answers have: sympy simplifies what it
is compared with, whose time grows with the functions, and with the products to multiply out."""
_NUMBER = re.compile(r"[-+\d.,/\s]*(?:[eE][-+]?\d{1,3}\s*)?")
_FORMULA = re.compile("[A-Z()¬∧∨→↔]+")
_NO_FORMULA = re.compile(r"[A-Z)][A-Z(¬]|\(\)")
_LONGEST_FORMULA = 300
_MOST_NODES, _DEEPEST = 1000, 12
"""Values in an answer in JSON, and how deep they lie; of 500 right ones, 2 have more values."""


def is_number_expression(answer: str) -> bool:
    """Return whether an answer is a sum, product or quotient of numbers, without powers."""
    return _is_expression(answer) and not re.search(r"[A-Za-z]|\*\*", answer)


def is_polynomial(answer: str) -> bool:
    """Return whether an answer is an expression of variables of one letter.

    Bases of powers are single numbers and names, exponents have up to two digits.
    """
    words = re.findall(_WORD, answer)
    named = all(len(word) == 1 and word not in _SYMPY for word in words)
    small = all(_EXPONENT.match(answer, power.end()) for power in _POWER.finditer(answer))
    nested = re.search(r"\)\s*\*\*", answer) is not None
    return _is_expression(answer) and named and small and not nested


def is_integral(answer: str) -> bool:
    """Return whether an answer is an expression of common functions, a variable and a constant.

    It has few brackets, no function of a function, no power of a number and no number of more than
    six digits. Exponents are less than 30, those of brackets less than 10. What passes is of the
    size of right answers; some of it still takes sympy's simplification half a minute and more.
    """
    words = set(re.findall(_WORD, answer)) - _FUNCTIONS
    known = len(words) <= 2 and all(len(word) == 1 and word not in _SYMPY for word in words)
    if not (known and _is_expression(answer)) or _HUGE.search(answer):
        return False
    for power in _POWER.finditer(answer):
        of_brackets = answer[: power.start()].rstrip().endswith(")")
        if not (_ONE_DIGIT if of_brackets else _UP_TO_29).match(answer, power.end()):
            return False
    brackets = _NUMBER_IN_BRACKETS.sub("", answer).count("(")
    return brackets <= _MOST_BRACKETS and not _is_nested(answer)


def _is_nested(answer: str) -> bool:
    """Return whether a function's brackets have a function in them."""
    around = list[bool]()
    for each in _CALL_OR_BRACKET.finditer(answer):
        if each[0] == ")":
            around = around[:-1]
            continue
        is_call = each[1] is not None
        if is_call and any(around):
            return True
        around.append(is_call)
    return False


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


def is_number(answer: str) -> bool:
    """Return whether an answer is a number or a fraction, with an exponent of up to three digits.

    A fraction keeps all digits, so that the power of ten of a large exponent would never end.
    """
    return _NUMBER.fullmatch(answer) is not None


def has_single_moves(answer: str) -> bool:
    """Return whether no move of a cube is repeated more than nine times."""
    return re.search(r"\d{2}", answer) is None


def has_short_moves(answer: str) -> bool:
    """Return whether no car is moved by more than 99."""
    return re.search(r"\d{3}", answer) is None


def is_formula(answer: str) -> bool:
    """Return whether an answer is a formula of propositional logic, with variables of one letter.

    The scorer takes whatever stands between operators for a variable, and tries all their values.
    """
    formula = "".join(answer.split())
    if len(formula) > _LONGEST_FORMULA or not _FORMULA.fullmatch(formula):
        return False
    is_even = formula.count("(") == formula.count(")")
    return is_even and not _NO_FORMULA.search(formula)


def is_small_json(answer: str) -> bool:
    """Return whether what an answer has in JSON is of a size that can be compared as a tree."""
    begin, end = answer.find("{"), answer.rfind("}")
    try:
        level = [json.loads(answer[begin : end + 1])]
    except (ValueError, RecursionError):
        return True  # it is then compared as text, or not at all
    count = depth = 0
    while level and depth <= _DEEPEST and count <= _MOST_NODES:
        count, depth = count + len(level), depth + 1
        level = [each for value in level for each in _parts(value)]
    return not level and depth <= _DEEPEST and count <= _MOST_NODES


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


EVALUATED: Mapping[str, Callable[[str], bool]] = {
    "countdown": is_number_expression,
    "puzzle24": is_number_expression,
    "simple_integration": is_integral,
    "intermediate_integration": is_integral,
    "polynomial_multiplication": is_polynomial,
    "coin_flip": is_number,
    "rubiks_cube": has_single_moves,
    "rush_hour": has_short_moves,
    "propositional_logic": is_formula,
    "codeio": is_small_json,
    "string_insertion": is_literal,
    "spiral_matrix": is_literal,
    "binary_matrix": is_literal,
    "n_queens": is_literal,
}
"""Tasks whose scorers evaluate the answer or may never end, and which answers they may see."""


def may_be_scored(task: str, answer: str) -> bool:
    """Return whether an answer may be passed to the scorer of a task."""
    if len(answer) > LONGEST or "\x00" in answer:
        return False
    allowed = EVALUATED.get(task)
    return allowed is None or allowed(answer)
