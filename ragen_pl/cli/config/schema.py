"""The keys that a class has in a configuration: its constructor's parameters."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Trainer

from ragen_pl.cli.config.constructors import told
from ragen_pl.cli.config.nearest import close_names, with_hint
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.user_faults import place_of_fault

_SWITCHES = ("true", "yes", "on", "false", "no", "off")
"""What YAML and people write for a switch."""
Schema = Mapping[str, Any]
"""Mapping from key to annotation; None for a value that only the parser checks."""


def annotation_of(keys: Schema, path: str) -> Any:
    """Return the annotation of a dotted key."""
    head, _, rest = path.partition(".")
    inner = keys.get(head)
    return annotation_of(constructor_keys(first_class(inner)) or {}, rest) if rest else inner


def first_class(annotation: Any) -> type:
    """Return the first class in an annotation, also as the type of the entries of a list or
    mapping; ``object`` if there is none."""
    for kind in alternatives(annotation):
        args = typing.get_args(kind) if typing.get_origin(kind) is not Literal else ()
        if inspect.isclass(kind) and not args and kind.__module__ != "builtins":
            return kind
        if args:
            return first_class(args[-1])
    return object


def find_class(name: str, base: type, path: str) -> type:
    """Import a class by its path, or find a subclass of ``base`` by its bare name.

    Raises:
        ConfigError: when there is no such class; the message suggests the nearest names.
    """
    module_name, _, class_name = name.rpartition(".")
    known: list[str]
    if name.lower() in _SWITCHES and not is_abstract(base):
        raise ConfigError(
            f"{path} is {name}, but it is a group of keys, or null\n  {{}} takes their defaults"
        )
    if not module_name:
        by_name = {cls.__name__: cls for cls in subclasses(base) if _can_be_chosen(cls)}
        if name in by_name:
            return by_name[name]
        known = list(by_name)
    else:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            if shadowed := _shadowed(error.name):
                raise ConfigError(f"{path}: {name}: {error}\n  {shadowed}") from error
            if place := place_of_fault(error):  # the module is there, and imports what is not
                what = told(error, place)
                raise ConfigError(f"{path}: {name} cannot be imported: {what}") from error
            raise ConfigError(
                f"{path}: {name} cannot be imported: {error}\n"
                f"  modules of your own are found in the working directory, here {Path.cwd()}"
            ) from error
        found = getattr(module, class_name, None)
        if inspect.isclass(found):
            return found
        known = [
            f"{module_name}.{n}" for n, member in vars(module).items() if inspect.isclass(member)
        ]
    if shadowed := _shadowed(module_name):
        raise ConfigError(f"{path}: there is no class {name}\n  {shadowed}")
    spelled = {each.lower(): each for each in known}
    nearest = [spelled[each] for each in close_names(name.lower(), spelled)]
    text = with_hint(f"{path}: there is no class {name}", nearest, known)
    if module_name or nearest:
        raise ConfigError(text)
    file = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    raise ConfigError(
        f"{text}\n  a class of your own is named by module and class, such as {file}.{name}"
    )


def _can_be_chosen(kind: type) -> bool:
    """Return whether a class is one for users, and whole."""
    return not is_abstract(kind) and not kind.__name__.startswith("_")


def is_abstract(kind: type) -> bool:
    """Return whether a class leaves methods to subclasses: ``inspect.isabstract`` knows only those
    whose metaclass is ``ABCMeta``, which that of environments is not."""
    members = (inspect.getattr_static(kind, name, None) for name in dir(kind))
    return any(getattr(each, "__isabstractmethod__", False) for each in members)


def _shadowed(module: str | None) -> str:
    """Return what to do with a module of the user's that is not read, since a module of this
    program, of Python or of another package has its name; empty if there is none."""
    package = (module or "").partition(".")[0]
    files = (Path(f"{package}.py"), Path(package) / "__init__.py")
    own = next((file for file in files if package and file.is_file()), None)
    read = getattr(sys.modules.get(package), "__file__", None)
    is_read = read is not None and own is not None and Path(read).resolve() == own.resolve()
    if own is None or package not in sys.modules or is_read:
        return ""
    if package == "callbacks":
        return (
            f"your {own} is not read, since {package} is a package of ragen-pl: rename it, or give "
            f"the class a file of its own in {package}/, such as {package}/mine.py for "
            f"{package}.mine"
        )
    where = read or "Python itself"
    return f"your {own} is not read, since there is another module {package} ({where}): rename it"


def check_required(tree: Any, path: str = "") -> None:
    """Raise an error if a resolved configuration leaves an argument without default unset.

    The parser itself would pass None for it to the class of a ``class_path``.

    Raises:
        ConfigError: naming the first such key.
    """
    if isinstance(tree, list):
        for index, entry in enumerate(tree):
            check_required(entry, f"{path}[{index}]")
    if not isinstance(tree, dict):
        return
    if isinstance(tree.get("class_path"), str):
        given = tree.get("init_args") or {}
        for name in _required(tree["class_path"]):
            if given.get(name) is None:
                raise ConfigError(
                    f"{path}.init_args.{name} must be set: {tree['class_path']} has no default "
                    "for it"
                )
    for key, value in tree.items():
        check_required(value, f"{path}.{key}" if path else str(key))


def _required(class_path: str) -> list[str]:
    """List a class's arguments that have no default and do not take None."""
    module_name, _, class_name = class_path.rpartition(".")
    kind = getattr(importlib.import_module(module_name), class_name) if module_name else object
    hints = (constructor_keys(kind) or {}) if inspect.isclass(kind) else {}
    parameters = inspect.signature(kind).parameters.values() if hints else ()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and type(None) not in alternatives(hints.get(parameter.name))
    ]


def subclasses(base: type) -> list[type]:
    """List all direct and indirect subclasses of a class that a ``class_path`` can name, unlike
    those that a function makes."""
    found: list[type[Any]] = []
    cls: type[Any]
    for cls in base.__subclasses__():
        named: list[type[Any]] = [] if "<locals>" in cls.__qualname__ else [cls]
        found += [*named, *subclasses(cls)]
    return found


def alternatives(annotation: Any) -> list[Any]:
    """List the types that an annotation allows, from within unions and ``Annotated``."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for arg in typing.get_args(annotation) for kind in alternatives(arg)]
    if origin is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    return [annotation]


def constructor_keys(kind: type) -> dict[str, Any] | None:
    """Return a constructor's parameters with their annotations; None if it accepts any name."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return parameter_keys(kind.__init__)  # type: ignore[misc]  # this very class's own


def constructor_defaults(kind: type) -> dict[str, Any]:
    """Return the defaults of a constructor's parameters; those without one are left out."""
    if not dataclasses.is_dataclass(kind):
        parameters = inspect.signature(kind).parameters
        return {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    found = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
    return found


def parameter_keys(function: Any) -> dict[str, Any] | None:
    """Return a method's parameters with their annotations; None if it accepts any name."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations of other libraries may not resolve
        hints = {}
    return {parameter.name: hints.get(parameter.name) for parameter in parameters}


def all_keys(schema: Schema, path: str) -> Iterator[str]:
    """Iterate over the keys of a group, then over those of nested groups: users may leave out the
    nested group of a key.

    Of other libraries' classes only the trainer's keys are ones that users know.
    """
    yield from (f"{path}{key}" for key in schema)
    for key, annotation in schema.items():
        for kind in alternatives(annotation):
            if inspect.isclass(kind) and (_is_ours(kind) or kind is Trainer):
                for variant in subclasses(kind) if inspect.isabstract(kind) else [kind]:
                    yield from all_keys(constructor_keys(variant) or {}, f"{path}{key}.")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("ragen_pl", "callbacks")
