"""Where two values differ: the first place, with some context of both."""

from __future__ import annotations

from collections.abc import Mapping

_BEFORE, _AFTER = 12, 28
"""Characters of context before the first that differs, and from it on."""
_LONGEST = 60
"""Characters shown of a value that is no text."""


def difference(one: object, other: object, name: str = "") -> str:
    """Describe the first place where two values differ, such as ``state["at"][1]: 3 and 4``.

    Args:
        one: Plain data (JSON types), or a mapping or sequence of it.
        other: What it is compared with.
        name: What the place begins with, such as ``state``.

    Returns:
        The place and what both have there; empty if they are equal.
    """
    if isinstance(one, str) and isinstance(other, str):
        return _of_texts(one, other, name)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            place = f"{name}[{_shown(key)}]" if name else str(key)
            if key not in one or key not in other:
                held = one[key] if key in one else other[key]
                return f"{place}: {_shown(held)} in one of them only"
            if found := difference(one[key], other[key], place):
                return found
        return ""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        for number in range(max(len(one), len(other))):
            place = f"{name}[{number}]"
            if number >= min(len(one), len(other)):
                held = max(one, other, key=len)[number]
                return f"{place}: {_shown(held)} in one of them only"
            if found := difference(one[number], other[number], place):
                return found
        return ""
    if one == other:
        return ""
    return f"{name}: {_shown(one)} and {_shown(other)}".removeprefix(": ")


def _of_texts(one: str, other: str, name: str) -> str:
    if one == other:
        return ""
    at = next(
        (n for n, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its),
        min(len(one), len(other)),
    )
    where = ""
    if at >= _BEFORE:  # else the context begins with the text
        line = one.count("\n", 0, at) + 1
        column = at - one.rfind("\n", 0, at)
        in_line = f" of line {line}" if "\n" in one[:at] else ""
        where = f" from character {column}{in_line} on"
    return f"{name}{where}: {_around(one, at)} and {_around(other, at)}".removeprefix(": ").lstrip()


def _around(text: str, at: int) -> str:
    begin, end = max(0, at - _BEFORE), at + _AFTER
    shown = repr(text[begin:end])
    return f"{'…' if begin else ''}{shown}{'…' if end < len(text) else ''}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
