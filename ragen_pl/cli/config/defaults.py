"""Defaults of the keys of a resolved configuration, from the constructors behind them."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from ragen_pl.cli.config.schema import alternatives, constructor_defaults, constructor_keys

_UNKNOWN = object()


def config_defaults(config: Mapping[str, Any], groups: Mapping[str, type]) -> dict[str, Any]:
    """Return the default of every key whose default is known, by its dotted key.

    Within ``init_args`` they are the defaults of the class that was chosen. Keys that are required
    have none, nor those of a class that cannot be imported here.

    Args:
        config: The resolved configuration as plain data.
        groups: The classes behind the top-level groups of keys.
    """
    found: dict[str, Any] = {}
    for name, kind in groups.items():
        if isinstance(config.get(name), Mapping):
            _add_group(found, name, config[name], kind, _UNKNOWN)
    return found


def _add_group(
    found: dict[str, Any], path: str, values: Mapping[str, Any], kind: type, instance: object
) -> None:
    """Add the defaults of a class's keys.

    Args:
        instance: The group's own default, whose fields come before the constructor's defaults.
    """
    annotations, defaults = constructor_keys(kind) or {}, constructor_defaults(kind)
    for name, value in values.items():
        default = defaults.get(name, _UNKNOWN)
        if instance is not _UNKNOWN and hasattr(instance, name):
            default = getattr(instance, name)
        _add(found, f"{path}.{name}", value, annotations.get(name), default)


def _add(found: dict[str, Any], path: str, value: Any, annotation: Any, default: Any) -> None:
    plain = _plain(default)
    if not isinstance(value, Mapping):
        if plain is not _UNKNOWN:
            found[path] = plain
        return
    if "class_path" in value:
        chosen = _class_of(str(value["class_path"]))
        if default is None:
            found[f"{path}.class_path"] = None
        elif default is not _UNKNOWN and chosen is not None:
            same = type(default) is chosen
            name = type(default).__qualname__
            found[f"{path}.class_path"] = value["class_path"] if same else name
        if chosen is not None and isinstance(value.get("init_args"), Mapping):
            _add_group(found, f"{path}.init_args", value["init_args"], chosen, _UNKNOWN)
        return
    group = _group_of(annotation)
    if group is not None:
        instance = default if isinstance(default, group) else _UNKNOWN
        _add_group(found, path, value, group, instance)
        return
    inner = _value_annotation(annotation)
    given = default if isinstance(default, Mapping) else {}
    for name, each in value.items():  # names that users choose
        _add(found, f"{path}.{name}", each, inner, given.get(name, _UNKNOWN))


def _group_of(annotation: Any) -> type | None:
    """Return the class whose constructor's keys a mapping holds."""
    for kind in alternatives(annotation):
        if inspect.isclass(kind) and kind.__module__.partition(".")[0] in ("ragen_pl", "callbacks"):
            return kind
    return None


def _value_annotation(annotation: Any) -> Any:
    """Return the annotation of the values of a mapping."""
    for kind in alternatives(annotation):
        arguments = typing.get_args(kind)
        if len(arguments) == 2:
            return arguments[1]
    return None


def _class_of(path: str) -> type | None:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if inspect.isclass(found) else None


def _plain(value: Any) -> Any:
    """Return a default as YAML would hold it; unknown for objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        items = [_plain(each) for each in value]
        return _UNKNOWN if any(each is _UNKNOWN for each in items) else items
    if isinstance(value, Mapping):
        return dict(value)
    return _UNKNOWN
