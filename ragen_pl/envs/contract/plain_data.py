"""Plain data, which states are made of: JSON types, and what stands in a state that is none."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

NOISE_REMEDY = (
    "the generator of later noise stays out of get_state, and set_state leaves it as it is; what "
    "must come back after a restore is drawn in reset and kept in the state"
)
"""What to do with a random generator."""
_RANDOM_WORDS = 625
"""Integers in the state of ``random.Random``."""


def plain_text(state: Any) -> str | None:
    """Return a state as JSON; None if it is no dict of JSON types, as ``get_state`` must return."""
    if not isinstance(state, dict):
        return None
    try:
        text = json.dumps(state, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # such as halves of surrogate pairs
        return None
    return text


def wanted_of_state(state: Any) -> str:
    """Return what ``get_state`` must return in place of a value that is no plain data."""
    wanted = "a dict of plain data (JSON types)"
    try:
        found = _odd_place(state, "state") if isinstance(state, dict) else ""
    except RecursionError:
        found = "it holds itself, or is nested too deeply"
    return f"{wanted}: {found}" if found else wanted


def key_that_json_changes(state: Any) -> str:
    """Describe the first key of a state that is no text, which JSON makes one; empty if there is
    none."""
    for place, value in _parts(state, "state"):
        for key in value if isinstance(value, Mapping) else ():
            if not isinstance(key, str):
                return (
                    f"{place} has the key {key!r}, which comes back from JSON as the text '{key}'"
                )
    return ""


def generator_in(state: Any) -> str:
    """Return the place of a random generator's own state within plain data; empty if none is there.

    Python's ``getstate()`` is known, and numpy's ``bit_generator.state``.
    """
    for place, value in _parts(state, "state"):
        is_of_numpy = isinstance(value, Mapping) and "bit_generator" in value
        if is_of_numpy or (isinstance(value, list | tuple) and _is_of_random(value)):
            return place
    return ""


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a value and all that it is made of, outer parts first, each with its place."""
    yield place, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _parts(each, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _parts(each, f"{place}[{number}]")


def _is_of_random(state: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether a value is what ``random.Random.getstate`` returns: version, words, rest."""
    words = state[1] if len(state) == 3 else None
    return isinstance(words, list | tuple) and len(words) == _RANDOM_WORDS


def _odd_place(value: Any, place: str) -> str:
    """Describe the first part of a value that is no plain data; empty if there is none."""
    if value is None or isinstance(value, bool | int):
        return ""
    if isinstance(value, str):
        return "" if _can_be_encoded(value) else f"{place} has halves of surrogate pairs"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{place} is {value}, which JSON does not have"
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(key, str | int | float):
                return f"{place} has the key {key!r:.40}, a {type(key).__name__}: make it a text"
            if found := _odd_place(each, f"{place}[{key!r:.40}]"):
                return found
        return ""
    if isinstance(value, list | tuple):
        parts = (_odd_place(each, f"{place}[{number}]") for number, each in enumerate(value))
        return next(filter(None, parts), "")
    return f"{place} is a {type(value).__name__}: {_remedy(value)}"


def _remedy(value: object) -> str:
    if isinstance(value, random.Random | np.random.Generator | np.random.RandomState):
        return NOISE_REMEDY
    if isinstance(value, np.ndarray):
        return "take its tolist()"
    if isinstance(value, np.generic):
        return "take its item()"
    if isinstance(value, set | frozenset):
        return "take sorted(…) of it"
    return "take the numbers and texts that it is made of"


def _can_be_encoded(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
