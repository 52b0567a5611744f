"""Errors about a ``class_path`` that exists but cannot be built where it is named."""

from __future__ import annotations

import inspect
import re
import sys

from ragen_pl.errors import ConfigError

_REPORTS = (
    re.compile(r"(?P<key>[\w.]+) is (?P<name>[\w.]+\.\w+); it must be null"),
    re.compile(r"(?P<key>[\w.]+): Import path (?P<name>\S+) does not correspond to a subclass"),
    re.compile(r"(?P<key>[\w.]+): Expected an instantiatable class, but (?P<name>\S+) is abstract"),
)
"""What the parser says of such a class, shortened."""


def reported(error: ConfigError) -> tuple[str, str] | None:
    """Return the key and the ``class_path`` that an error is about; None for another error."""
    for form in _REPORTS:
        if match := form.match(str(error)):
            return match["key"], match["name"]
    return None


def unfit_class(place: str, name: str, base: type) -> ConfigError | None:
    """Return an error that says why a class does not fit; None if it does, or is not known.

    Args:
        place: The key as it was given.
        name: The ``class_path``, whose module the parser has imported.
        base: The class that the key takes subclasses of.
    """
    module, _, attribute = name.rpartition(".")
    found = getattr(sys.modules.get(module), attribute, None)
    if found is None or base is object:
        return None
    needed = f"{base.__module__}.{base.__qualname__}"
    if not inspect.isclass(found):
        kind = "function" if inspect.isroutine(found) else type(found).__name__
        return ConfigError(
            f"{place} is {name}, which is a {kind}\n  it must be a class derived from {needed}"
        )
    if not issubclass(found, base):
        return ConfigError(f"{place} is {name}, which is not derived from {needed}: derive it")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        return ConfigError(
            f"{place} is {name}, which lacks {', '.join(missing)}\n"
            f"  define what {needed} leaves to its classes"
        )
    return None
