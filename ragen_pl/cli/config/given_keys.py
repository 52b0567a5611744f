"""What a command line and its config files set, by the path of the key."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.cli.config.checked_yaml import KeyFaultError, load_yaml
from ragen_pl.cli.config.constructors import told
from ragen_pl.cli.config.files import options, read_config
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_faults import place_of_fault


def refuse_linked(argv: Sequence[str], linked: Mapping[str, str]) -> None:
    """Raise an error for keys that follow another one; in a config file the parser ignores them.

    Raises:
        ConfigError: for the first of them.
    """
    for key, value in every_setting(argv):
        if key in linked and value is not None:
            source = linked[key]
            raise ConfigError(f"{key} is {value!r}, but it follows {source}: set {source} instead")


def refuse_broken_modules(argv: Sequence[str]) -> None:
    """Raise an error for a class whose module cannot be imported because of an error in it.

    Raises:
        ConfigError: with the error that the module raised.
    """
    for place, value in every_setting(argv):
        if isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.\w+)+", value):
            try:
                importlib.import_module(value.rpartition(".")[0])
            except ImportError:
                continue  # the parser reports that, or it is no class
            except Exception as error:  # the boundary to user code: a slip in the file, any error
                what = told(error, place_of_fault(error))
                raise ConfigError(f"{place}: {value} cannot be imported: {what}") from error


def every_setting(argv: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the keys of a prepared command line and of its config files, with values."""
    for key, value in options(argv):
        if key == "config":
            yield from _nodes(read_config(Path(str(value))), "")
        else:
            yield from _nodes(_parsed(key, value), key.removesuffix("+"))


def _parsed(key: str, value: str | None) -> Any:
    """Parse an option's value if it is a YAML mapping or list; return any other text unchanged.

    Raises:
        ConfigError: when it holds a key twice, or one that is no text.
    """
    try:
        return load_yaml(value) if value and value[0] in "{[" else value
    except KeyFaultError as error:
        raise ConfigError(f"--{key}: {error.told}") from error
    except yaml.YAMLError:
        return value


def _nodes(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Iterate over (path, value) of all nodes of nested mappings and lists."""
    if path:
        yield path, tree
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _nodes(value, f"{path}[{index}]")


def last_given(
    argv: Sequence[str], path: str, matches: Callable[[str, Any], bool]
) -> tuple[str, Any]:
    """Return the path and the value of the last matching setting at or below a key.

    The search is needed because the parser does not report the paths of entries in lists and
    mappings.
    """
    top = path.partition(".init_args")[0].removesuffix(".")
    found = [
        (at, value)
        for at, value in every_setting(argv)
        if at.startswith(top) and matches(at, value)
    ]
    return found[-1] if found else (path, None)
