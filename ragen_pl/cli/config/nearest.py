"""The nearest names that exist to a wrong one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

_OF_CLASS = ("class_path", "init_args")
"""Beginnings of what stands below a key that chooses a class."""


def nearest_keys(key: str, known: Sequence[str]) -> list[str]:
    """List the known keys that a wrong one is likely to mean, the most likely ones only.

    Args:
        key: Dotted name, from the innermost group that exists.
        known: Dotted names from there.
    """
    known = sorted(dict.fromkeys(known), key=lambda name: name.count("."))
    ending = [name for name in known if f".{name}".endswith(f".{key}")]
    if ending:  # only groups before it were left out
        return [name for name in ending if name.count(".") == ending[0].count(".")][:3]
    head, _, rest = key.partition(".")
    if rest:
        place = _place_of(head, rest, known)
        if place is not None:
            below = _below(place, known)
            if not below or rest.startswith(_OF_CLASS):  # names that users choose, or classes
                return [f"{place}.{rest}"]
            return [f"{place}.{name}" for name in nearest_keys(rest, below)] or [place]
    return close_names(key, known)


def _place_of(head: str, rest: str, known: Sequence[str]) -> str | None:
    """Return the known name that the first part of a key means; None if none is like it.

    It is one deeper down, if only the groups before it were left out, or else a sibling. Of
    siblings, one that has the rest of the key comes first.
    """
    siblings = list(dict.fromkeys(name.partition(".")[0] for name in known))
    if head not in siblings:
        deeper = [name for name in known if name.endswith(f".{head}")]
        if deeper:
            return deeper[0]
    close = get_close_matches(head, siblings)
    groups = [name for name in close if rest in _below(name, known)]
    return next(iter([*groups, *close]), None)


def _below(group: str, known: Sequence[str]) -> list[str]:
    return [name.removeprefix(f"{group}.") for name in known if name.startswith(f"{group}.")]


def close_names(name: str, known: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """List the known dotted names whose last parts are the most similar to that of a name.

    Only the last parts are compared: names within a group share what precedes them. Of several
    with the same last part, the first is listed; one with the very same part is the only one.
    """
    by_last: dict[str, str] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], each)
    wanted = name.rpartition(".")[2]
    close = [wanted] if wanted in by_last else get_close_matches(wanted, by_last)
    return [by_last[last] for last in close]


def with_hint(text: str, nearest: Sequence[str], known: Sequence[str]) -> str:
    """Return a message with the nearest names below it, or with the known ones if none is near."""
    if nearest:
        return f"{text}\n  did you mean {' or '.join(nearest)}?"
    here = [name.rpartition(".")[2] for name in known]
    return f"{text}\n  known: {', '.join(here)}" if here else f"{text}\n  there are none here"
