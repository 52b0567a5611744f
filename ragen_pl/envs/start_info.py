"""What the ``info`` of a reset says of the start: its difficulty and its optimal length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np


def odd_fact(info: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Return the first fact of a start that is of a wrong kind, and what it must be.

    Returns:
        The fact by its name, and what ``reset`` must return; None if all are right.
    """
    difficulty, length = info.get("difficulty"), info.get("optimal_length")
    if not (difficulty is None or isinstance(difficulty, str) or _is_number(difficulty)):
        return {"difficulty": difficulty}, 'a text or a finite number as "difficulty", or none'
    is_count = isinstance(length, Integral) and _is_number(length) and int(length) >= 0
    if not (length is None or is_count):
        wanted = 'an integer of 1 or more as "optimal_length", the fewest actions to success, or'
        return {"optimal_length": length}, f"{wanted} none"
    return None


def difficulty_in(info: Mapping[str, Any]) -> str:
    """Return the difficulty of a start, empty if it has none."""
    difficulty = info.get("difficulty")
    return "" if difficulty is None else str(difficulty)


def optimal_length_in(info: Mapping[str, Any]) -> int | None:
    """Return the fewest actions from a start to success; None if they are not known, or none."""
    return int(info.get("optimal_length") or 0) or None


def _is_number(value: object) -> bool:
    is_real = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]
