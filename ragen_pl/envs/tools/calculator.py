"""``Calculator``: arithmetic that always ends."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from ragen_pl.envs.tools.toolbox import Toolbox

_LONGEST = 500
_MOST_DIGITS = 100
_LARGEST = 10**_MOST_DIGITS

Number = int | float


class Calculator(Toolbox):
    """Arithmetic on numbers; expressions are read as a tree and never executed."""

    def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression.

        Args:
            expression: Numbers with + - * / // % ** and brackets, and the functions sqrt, abs,
                round, floor, ceil, min, max, log, exp, sin, cos, tan; pi and e.
        """
        if len(expression) > _LONGEST:
            raise ValueError(f"the expression has more than {_LONGEST} characters")
        try:
            tree = ast.parse(expression.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ValueError("the expression cannot be read") from None
        return _text(_value(tree.body))


def _text(value: Number) -> str:
    """Return a number, whole ones without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        if exponent * max(1, abs(base).bit_length()) > _MOST_DIGITS * 4:
            raise OverflowError("the power is too large")
    elif base < 0 and not float(exponent).is_integer():
        raise ValueError("a root of a negative number is no number")
    result: Number = base**exponent
    return result


def _rounded(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        raise ValueError("round takes a number of digits")
    return round(value, digits)


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "sqrt": math.sqrt,
    "abs": abs,
    "round": _rounded,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "log": math.log,
    "exp": math.exp,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}


def _value(node: ast.expr) -> Number:
    """Return the value of an expression.

    Raises:
        ValueError: if it is none of arithmetic.
        ArithmeticError: if it has no value, or a very large one.
    """
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            result: Number = value
        case ast.Name(id=name) if name in _CONSTANTS:
            result = _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as given, keywords=[]) if (
            name in _FUNCTIONS
        ):
            result = _FUNCTIONS[name](*(_value(each) for each in given))
        case _:
            raise ValueError(f"{ast.unparse(node)[:60]!r} is no arithmetic")
    if isinstance(result, float) and not math.isfinite(result):
        raise OverflowError("the result is not finite")
    if abs(result) > _LARGEST:
        raise OverflowError(f"the result has more than {_MOST_DIGITS} digits")
    return result
