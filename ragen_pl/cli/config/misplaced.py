"""Keys of a single part given where several are listed by name, and the other way round.

``data.env`` is one environment; ``data.envs`` and ``data.eval_sets`` have several, each below a
name.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ragen_pl.cli.config.given_keys import every_setting
from ragen_pl.cli.config.parser import NAMELESS
from ragen_pl.cli.config.schema import (
    Schema,
    constructor_keys,
    first_class,
    is_abstract,
    subclasses,
)
from ragen_pl.errors import ConfigError

_OF_CLASS = ("class_path", "init_args", "dict_kwargs")
"""Keys of a mapping that chooses a class."""


@dataclass(frozen=True, slots=True)
class _Homes:
    """The keys of a group whose values are of one class."""

    kind: type
    one: str
    """The key of a single part."""
    several: tuple[str, ...]
    """Keys of parts by name; the one that is most like ``one`` comes first."""

    def has_key(self, key: str) -> bool:
        """Return whether parts of this class may have a key."""
        return any(key in (constructor_keys(each) or ()) for each in subclasses(self.kind))

    def has_class(self, name: object) -> bool:
        """Return whether a value names a known class of these parts, with or without its module."""
        return str(name).rpartition(".")[2] in (each.__name__ for each in subclasses(self.kind))


def misplaced(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError | None:
    """Return an error that says where a key belongs; None if none is misplaced so.

    Args:
        error: The parser's error, which must be about one of these places.
        argv: The prepared command line that was parsed.
        schema: Top-level keys of the configuration.
    """
    texts, cause = list[str](), typing.cast("BaseException | None", error)
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    about, given = "\n".join(texts), dict(every_setting(argv))
    for homes in _homes(schema):
        if re.match(
            rf"{homes.several[0]}(: {NAMELESS}| is \S+; it must be a mapping$)", str(error)
        ):
            return ConfigError(f"{error}; a single one is {homes.one}")
        places = [place for place in (homes.one, *homes.several) if place in about]
        for at, value in given.items():
            place = next((each for each in places if at.startswith(f"{each}.")), None)
            if place is None:
                continue
            key, _, below = at.removeprefix(f"{place}.").partition(".")
            if place == homes.one:
                told = _below_one(homes, given, key, below, value)
            else:
                told = _below_several(homes, given, place, key, value)
            if told is not None:
                return told
    return None


def _below_one(
    homes: _Homes, given: Mapping[str, Any], key: str, below: str, value: Any
) -> ConfigError | None:
    """Return an error for a name below the key of a single part, or for a key of a part where
    several are listed instead; None for any other key."""
    one, several = homes.one, homes.several[0]
    if key in _OF_CLASS or (not homes.has_key(key) and get_close_matches(key, _OF_CLASS)):
        return None
    is_named = not below and (homes.has_class(value) or _is_own_class(value))
    is_class = below == "class_path" or (isinstance(value, dict) and "class_path" in value)
    if not homes.has_key(key) and (is_named or is_class or f"{several}.{key}" in given):
        return ConfigError(
            f"{one}.{key} names one of several, but {one} is a single one\n"
            f"  several stand below {several}: {several}.{key}"
        )
    is_chosen = isinstance(given.get(one), str) or given.get(f"{one}.class_path") is not None
    if homes.has_key(key) and not is_chosen and (name := _first_name(several, given)):
        return ConfigError(
            f"{one}.{key} is set, but there is no {one}: {several} lists several\n"
            f"  set it below a name, such as {several}.{name}.{key}"
        )
    return None


def _below_several(
    homes: _Homes, given: Mapping[str, Any], place: str, key: str, value: Any
) -> ConfigError | None:
    """Return an error for a key of a part in place of a part's name; None for any other key."""
    if isinstance(value, dict) or value is None or key in _OF_CLASS or not homes.has_key(key):
        return None
    if homes.has_class(value):
        return None  # a part with the name of a key
    name = _first_name(place, given) or "NAME"
    return ConfigError(
        f"{place}.{key} is {value}, but {place} lists several by name\n"
        f"  set it below a name, such as {place}.{name}.{key}; of a single one it is "
        f"{homes.one}.{key}"
    )


def _is_own_class(value: object) -> bool:
    """Return whether a value looks like a class in a user's module, which is not imported yet."""
    return isinstance(value, str) and bool(re.fullmatch(r"([^\W\d]\w*\.)+[A-Z]\w*", value))


def _first_name(place: str, given: Mapping[str, Any]) -> str | None:
    """Return the name of the first part that is listed at a place; None if there is none."""
    names = (at.removeprefix(f"{place}.") for at in given if at.endswith(".class_path"))
    return next((at.partition(".")[0] for at in names if at.count(".") == 1), None)


def _homes(schema: Schema) -> Iterator[_Homes]:
    for group, annotation in schema.items():
        keys = constructor_keys(first_class(annotation)) or {}
        kinds = {key: first_class(each) for key, each in keys.items()}
        by_name = [key for key, each in keys.items() if typing.get_origin(each) in (dict, Mapping)]
        for key, kind in kinds.items():
            several = [other for other in by_name if kinds[other] is kind]
            if several and key not in by_name and is_abstract(kind):
                near = get_close_matches(key, several, n=len(several), cutoff=0.0)
                yield _Homes(kind, f"{group}.{key}", tuple(f"{group}.{each}" for each in near))
