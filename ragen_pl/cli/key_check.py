"""Check the keys of a configuration against the constructors that will receive them.

The parser alone reports a misspelled key inside a list or a nested group as a failed union of
types; here the key is named, with the nearest ones that exist.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.cli.config_files import merge, options, read_config, same_class
from ragen_pl.errors import ConfigError

Schema = Mapping[str, Any]
"""Key → annotation, or None for a value that the parser alone judges."""

_SUBCLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


def check_arguments(argv: Sequence[str], schema: Schema, linked: Mapping[str, str]) -> None:
    """Check every key of a prepared command line and of its config files, left to right.

    Args:
        schema: The top-level keys.
        linked: Keys that follow another one and cannot be given.

    Raises:
        ConfigError: for the first key that does not exist.
    """
    tree: dict[str, Any] = {}
    for key, value in options(argv):
        if key == "config":
            tree = merge(tree, read_config(Path(str(value))))
        elif not key.split(".")[-1].startswith(("help", "print_")):
            _insert(tree, key.removesuffix("+"), value)
        _check_keys(tree, schema, "")
        _refuse_linked(tree, linked)


def _insert(tree: dict[str, Any], key: str, value: Any) -> None:
    """Put one option of the command line in its place; ``env.size`` means its ``init_args``."""
    *parents, last = key.split(".")
    node: Any = tree
    for part in parents:
        node = _enter(node, part)
        if not isinstance(node, dict):
            return
    if _is_subclass(node) and last not in _SUBCLASS_KEYS:
        node = node.setdefault("init_args", {})
    if isinstance(value, str):
        value = yaml.safe_load(value) if value[:1] in "{[" or value == "null" else value
    old = node.get(last)
    if last == "class_path" and not same_class(old, value):
        node.clear()
    named = old.get("class_path") if isinstance(old, dict) else None
    if named is None or not same_class(named, value):  # named again, a class keeps its arguments
        node[last] = merge(old, value)


def _enter(node: dict[str, Any], part: str) -> Any:
    if _is_subclass(node) and part not in _SUBCLASS_KEYS:
        node = node.setdefault("init_args", {})
    child = node.get(part)
    if isinstance(child, list):  # an option speaks of the entry that was added last
        child = child[-1] if child else None
    if isinstance(child, str):
        child = node[part] = {"class_path": child}
    if child is None:
        child = node[part] = {}
    return child


def _is_subclass(node: Mapping[str, Any]) -> bool:
    return any(key in node for key in _SUBCLASS_KEYS)


# --- walking ------------------------------------------------------------------------------------


def _check_keys(
    tree: Mapping[str, Any], schema: Schema, path: str, defaults: Mapping[str, type] | None = None
) -> None:
    for key, value in tree.items():
        if key not in schema:
            raise ConfigError(_unknown(f"{path}{key}", value, list(_all_keys(schema, path))))
        if schema[key] is not None:
            _check_value(value, schema[key], f"{path}{key}", (defaults or {}).get(key))


def _check_value(value: Any, annotation: Any, path: str, default: type | None = None) -> None:
    """Descend into groups, lists, mappings and ``class_path`` entries.

    Args:
        default: The class that takes the keys where no ``class_path`` names one.
    """
    for kind in alternatives(annotation):
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(value, list) and origin in (list, tuple, Sequence) and args:
            for index, entry in enumerate(value):
                _check_value(entry, args[0], f"{path}[{index}]")
            return
        if isinstance(value, dict) and origin in (dict, Mapping) and len(args) == 2:
            for key, entry in value.items():
                _check_value(entry, args[1], f"{path}.{key}")
            return
        if isinstance(value, str) and inspect.isclass(kind) and _is_family(kind):
            find_class(value, kind, path)
            return
        if isinstance(value, dict) and inspect.isclass(kind) and _has_keys(kind):
            if "class_path" in value:
                _check_subclass(value, kind, path)
            elif default is not None and issubclass(default, kind):
                given = value.get("init_args", value)
                _check_owner(given, default, kind, path)
                _check_group(given, default, path)
            else:
                _check_group(value, kind, path)
            return


def _check_subclass(value: Mapping[str, Any], kind: type, path: str) -> None:
    extra = [key for key in value if key not in _SUBCLASS_KEYS]
    if extra:
        known = [f"{path}.{key}" for key in _SUBCLASS_KEYS]
        raise ConfigError(_unknown(f"{path}.{extra[0]}", value[extra[0]], known))
    _check_group(
        value.get("init_args") or {},
        find_class(str(value["class_path"]), kind, f"{path}.class_path"),
        f"{path}.init_args",
    )


def _check_owner(value: Mapping[str, Any], chosen: type, base: type, path: str) -> None:
    """Refuse a key of another class than the one that stands there without being named."""
    own = constructor_keys(chosen) or ()
    for key in (key for key in value if key not in own):
        others = [cls for cls in subclasses(base) if key in (constructor_keys(cls) or ())]
        if others:
            name = others[0].__name__
            raise ConfigError(
                f"{path}.{key} is a key of {name}, but {path} is {chosen.__name__}\n"
                f"  choose it first: --{path} {name}"
            )


def _check_group(value: Mapping[str, Any], kind: type, path: str) -> None:
    keys = constructor_keys(kind)
    if keys is not None:
        _check_keys(value, keys, f"{path}.", _default_classes(kind))


def find_class(name: str, base: type, path: str) -> type:
    """Import a class by its path, or find a subclass of ``base`` by its bare name.

    Raises:
        ConfigError: with the nearest names.
    """
    module_name, _, class_name = name.rpartition(".")
    known: list[str]
    if not module_name:
        concrete = [cls for cls in subclasses(base) if not inspect.isabstract(cls)]
        by_name = {cls.__name__: cls for cls in concrete}
        if name in by_name:
            return by_name[name]
        known = list(by_name)
    else:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise ConfigError(f"{path}: {name} cannot be imported: {error}") from error
        except Exception as error:  # the boundary to user code: a slip in the file, any error
            raise ConfigError(
                f"{path}: {name} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        found = getattr(module, class_name, None)
        if inspect.isclass(found):
            return found
        known = [
            f"{module_name}.{n}" for n, member in vars(module).items() if inspect.isclass(member)
        ]
    raise ConfigError(_unknown(path, name, known, what="class"))


def check_required(tree: Any, path: str = "") -> None:
    """Refuse a resolved configuration that leaves an argument without default unset: the parser
    hands the class of a ``class_path`` None for it.

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
    """List the classes that derive from one, those of its subclasses too."""
    found: list[type[Any]] = []
    cls: type[Any]
    for cls in base.__subclasses__():
        found += [cls, *subclasses(cls)]
    return found


def alternatives(annotation: Any) -> list[Any]:
    """Take unions, ``Annotated`` and the like apart."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for arg in typing.get_args(annotation) for kind in alternatives(arg)]
    if origin is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    return [annotation]


def _is_family(kind: type) -> bool:
    """Whether a name chooses one of several classes of this application."""
    return _is_ours(kind) and (inspect.isabstract(kind) or bool(kind.__subclasses__()))


def _has_keys(kind: type) -> bool:
    return kind.__module__ != "builtins"


def constructor_keys(kind: type) -> dict[str, Any] | None:
    """Return a constructor's parameters with their annotations; None when it takes any."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    return parameter_keys(kind.__init__)  # type: ignore[misc]  # this very class's own


def _default_classes(kind: type) -> dict[str, type]:
    """Return a constructor's parameters with the classes of their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    given = [p for p in parameters if p.default is not p.empty and p.default is not None]
    return {parameter.name: type(parameter.default) for parameter in given}


def parameter_keys(function: Any) -> dict[str, Any] | None:
    """Return a function's parameters with their annotations; None when it takes any."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # annotations of other libraries may not resolve
        hints = {}
    return {parameter.name: hints.get(parameter.name) for parameter in parameters}


def _all_keys(schema: Schema, path: str) -> Iterator[str]:
    """Iterate over the keys of a group, then over those within: some are looked for too high up."""
    yield from (f"{path}{key}" for key in schema)
    for key, annotation in schema.items():
        for kind in alternatives(annotation):
            if inspect.isclass(kind) and _is_ours(kind):
                for variant in subclasses(kind) if inspect.isabstract(kind) else [kind]:
                    yield from _all_keys(constructor_keys(variant) or {}, f"{path}{key}.")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("ragen_pl", "callbacks")


# --- words --------------------------------------------------------------------------------------


def _refuse_linked(tree: Mapping[str, Any], linked: Mapping[str, str]) -> None:
    for key, source in linked.items():
        node: Any = tree
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        if node is not None:
            raise ConfigError(f"{key} is {node!r}, but it follows {source}: set {source} instead")


def _unknown(path: str, value: Any, known: Sequence[str], what: str = "key") -> str:
    # The last parts are compared: names in one place share what precedes them.
    by_last: dict[str, list[str]] = {}
    for name in sorted(known, key=lambda name: name.count(".")):
        by_last.setdefault(name.rpartition(".")[2], []).append(name)
    wanted = (str(value) if what == "class" else path).rpartition(".")[2]
    # Those of the very name, of which there may be several; else the one nearest to the top.
    matches = get_close_matches(wanted, by_last, n=3, cutoff=0.6)
    nearest = by_last.get(wanted, [])[:3] or [by_last[last][0] for last in matches]
    text = f"{path}: there is no class {value}" if what == "class" else f"unknown key {path}"
    if what == "key" and not isinstance(value, dict | list):
        text += f" (value {value})"
    if nearest:
        return f"{text}\n  did you mean {' or '.join(nearest)}?"
    depth = min((name.count(".") for name in known), default=0)
    here = [name.rpartition(".")[2] for name in known if name.count(".") == depth]
    return f"{text}\n  known: {', '.join(here)}" if here else f"{text}\n  there are none here"
