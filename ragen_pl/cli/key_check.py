"""Errors of the parser about keys and classes, worded with the nearest names that exist.

The parser decides what a configuration may hold, but it reports a misspelled key inside a list or a
nested group as a failed union of types, a page long. The exceptions that caused the report hold the
path of the key, and the constructors on that path give the names that exist.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from lightning.pytorch import Trainer

from ragen_pl.cli.config_files import options, read_config
from ragen_pl.cli.constructors import told
from ragen_pl.cli.unfit_class import reported, unfit_class
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.fault_place import place_of_fault

Schema = Mapping[str, Any]
"""Mapping from key to annotation; None for a value that only the parser checks."""

_KEY = re.compile(r"Parser key \"([^\"]+)\"")
_CLASS = re.compile(
    r"(?:Problem with given class_path '|Expected a dot import path string: )([^'\s]+)"
)
_OPTION = re.compile(
    r"(?:Subcommand '\w+' does not accept option|Option) '([^']+)'"
    r"|Group '([^']+)' does not accept option '([^']+)'"
    r"|unrecognized arguments: --([^\s=]+)"
)
_ALIASES = {
    "seed": "seed_everything",
    "resume": "ckpt_path",
    "checkpoint": "ckpt_path",
    "output_dir": "run_dir",
    "epochs": "trainer.max_epochs",
    "learning_rate": "model.optimization.lr",
    "lr": "model.optimization.lr",
}
"""Keys by short names that other programs give them; no key at the top has such a name."""
_UNSET = re.compile(r"([\w.]+) must be set: give a config first")
_NO_GROUP = re.compile(r"([\w.]+) is (.*); it must be null")


def explain(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError:
    """Return an error that names the unknown key or class behind the parser's error.

    If no unknown name is the cause, it is the parser's error, with the key as it was given.

    Args:
        argv: The prepared command line that was parsed.
        schema: Top-level keys of the configuration.
    """
    path, keys, text = "", schema, ""
    kind = base = None
    cause: BaseException | None = error
    while cause is not None:
        is_news, text = str(cause) != text, str(cause)  # else the same report, raised again
        if is_news and (match := _KEY.match(text)):
            # A group's keys are reported as a whole.
            path = match[1] if match[1].startswith(f"{path}.") else f"{path}{match[1]}"
            base = _annotation(keys, match[1])
        elif match := _CLASS.match(text):
            try:
                kind = _chosen_class(match[1], _first_class(base), path, argv)
            except ConfigError as unknown:
                return unknown
            keys = constructor_keys(kind) or {}
            path += "." if kind.__bases__ == (object,) else ".init_args."
        elif match := _OPTION.match(text):
            key = ".".join(part for part in match.groups() if part)
            return _foreign_key(key, path, kind, base, argv) or _unknown_key(key, path, keys, argv)
        cause = cause.__cause__ or cause.__context__
    return (
        _unset(error, argv, schema)
        or _no_group(error, schema)
        or _unfit(error, argv, schema)
        or _placed(error, argv)
    )


def _unset(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError | None:
    """Return an error with the whole name of a required argument of a class that was chosen; None
    if the error is about something else."""
    match = _UNSET.match(str(error))
    if match is None or match[1].partition(".")[0] in schema:
        return None
    for at, value in reversed(list(_all(argv))):
        place = at.removesuffix(".class_path")
        base = _first_class(_annotation(schema, place.replace(".init_args", "")))
        if base is object or not isinstance(value, str):
            continue
        try:
            kind = find_class(value, base, place)
        except ConfigError:
            continue
        if match[1] in (constructor_keys(kind) or ()):
            return ConfigError(
                f"{place}.{match[1]} must be set: {kind.__name__} has no default for it"
            )
    return None


def _no_group(error: ConfigError, schema: Schema) -> ConfigError | None:
    """Return an error that names a key of a group which was given a plain value; None if the error
    is about something else."""
    match = _NO_GROUP.fullmatch(str(error))
    kind = _first_class(_annotation(schema, match[1])) if match else object
    keys = constructor_keys(kind)
    if match is None or not keys:
        return None
    return ConfigError(
        f"{match[1]} is {match[2]}, but it is a group of keys, or null\n"
        f"  set its keys, such as {match[1]}.{next(iter(keys))}"
    )


def _unfit(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError | None:
    """Return an error that says why a class cannot be built; None if it is about something else."""
    found = reported(error)
    if found is None:
        return None
    key, name = found
    place, _ = _given(argv, key, lambda _, value: bool(value == name))
    return unfit_class(
        place.removesuffix(".class_path"), name, _first_class(_annotation(schema, key))
    )


def _placed(error: ConfigError, argv: Sequence[str]) -> ConfigError:
    """Return an error about a value with the whole key as it was given: the parser leaves out the
    names of a mapping's entries."""
    match = re.match(r"([\w.]+)\.(\w+) is (.*); it must be ", str(error))
    if match is None:
        return error
    group, key, value = match.groups()
    place, _ = _given(
        argv,
        group,
        lambda at, given: (
            at.startswith(f"{group}.") and at.endswith(f".{key}") and str(given) == value
        ),
    )
    return error if place == group else ConfigError(place + str(error)[match.end(2) :])


def _chosen_class(name: str, base: type, path: str, argv: Sequence[str]) -> type:
    return find_class(name, base, _given(argv, path, lambda _, value: bool(value == name))[0])


def _unknown_key(key: str, path: str, keys: Schema, argv: Sequence[str]) -> ConfigError:
    """Return an error for an unknown key, with the nearest names of the innermost known group."""
    head, _, rest = key.partition(".")
    inner = constructor_keys(_first_class(keys.get(head))) if rest else None
    if inner:
        return _unknown_key(rest, f"{path}{head}.", inner, argv)
    whole = f"{path}{key}"
    typed = whole.replace(".init_args", "")
    place, value = _given(argv, path, lambda at, _: f".{at}".endswith(f".{key}"))
    # Unlike ``path``, the place has the names that users choose.
    group = place.removesuffix(key) if f".{place}".endswith(f".{key}") else path
    if path.endswith(".init_args.") and not group.endswith(".init_args."):
        group += "init_args."
    nearest = [f"{group}{name}" for name in _nearest_keys(key, list(_all_keys(keys, "")))]
    if not path and key in _ALIASES:
        nearest = [_ALIASES[key]]
    elif not path and get_close_matches(key, ["help"]):
        nearest = ["--help"]
    text = f"unknown key {whole if place == typed else place}"
    if value is not None and not isinstance(value, dict | list):
        text += f" (value {value})"
    return ConfigError(_with_hint(text, nearest, list(keys)))


def _foreign_key(
    key: str, path: str, kind: type | None, base: Any, argv: Sequence[str]
) -> ConfigError | None:
    """Return an error that names the class to choose, if a key belongs to another class than the
    default one; None if it does not."""
    place = path.removesuffix(".init_args.")
    named = any(
        at.removesuffix(".class_path") == place and isinstance(value, str)
        for at, value in _all(argv)
    )
    if kind is None or named:
        return None
    others = [c for c in subclasses(_first_class(base)) if key in (constructor_keys(c) or ())]
    if not others:
        return None
    name = others[0].__name__
    return ConfigError(
        f"{place}.{key} is a key of {name}, but {place} is {kind.__name__}\n"
        f"  choose it first: --{place} {name}"
    )


# --- what was given -------------------------------------------------------------------------------


def refuse_linked(argv: Sequence[str], linked: Mapping[str, str]) -> None:
    """Raise an error for keys that follow another one; in a config file the parser ignores them.

    Raises:
        ConfigError: for the first of them.
    """
    for key, value in _all(argv):
        if key in linked and value is not None:
            source = linked[key]
            raise ConfigError(f"{key} is {value!r}, but it follows {source}: set {source} instead")


def refuse_broken_modules(argv: Sequence[str]) -> None:
    """Raise an error for a class whose module cannot be imported because of an error in it.

    Raises:
        ConfigError: with the error that the module raised.
    """
    for place, value in _all(argv):
        if isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.\w+)+", value):
            try:
                importlib.import_module(value.rpartition(".")[0])
            except ImportError:
                continue  # the parser reports that, or it is no class
            except Exception as error:  # the boundary to user code: a slip in the file, any error
                what = told(error, place_of_fault(error))
                raise ConfigError(f"{place}: {value} cannot be imported: {what}") from error


def _all(argv: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the keys of a prepared command line and of its config files, with values."""
    for key, value in options(argv):
        if key == "config":
            yield from _nodes(read_config(Path(str(value))), "")
        else:
            yield from _nodes(_parsed(value), key.removesuffix("+"))


def _parsed(value: str | None) -> Any:
    """Parse an option's value if it is a YAML mapping or list; return any other text unchanged."""
    try:
        return yaml.safe_load(value) if value and value[0] in "{[" else value
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


def _given(argv: Sequence[str], path: str, matches: Callable[[str, Any], bool]) -> tuple[str, Any]:
    """Return the path and the value of the last matching setting at or below a key.

    The search is needed because the parser does not report the paths of entries in lists and
    mappings.
    """
    top = path.partition(".init_args")[0].removesuffix(".")
    found = [(at, value) for at, value in _all(argv) if at.startswith(top) and matches(at, value)]
    return found[-1] if found else (path, None)


# --- constructors ---------------------------------------------------------------------------------


def _annotation(keys: Schema, path: str) -> Any:
    """Return the annotation of a dotted key."""
    head, _, rest = path.partition(".")
    inner = keys.get(head)
    return _annotation(constructor_keys(_first_class(inner)) or {}, rest) if rest else inner


def _first_class(annotation: Any) -> type:
    """Return the first class in an annotation, also as the type of the entries of a list or
    mapping; ``object`` if there is none."""
    for kind in alternatives(annotation):
        args = typing.get_args(kind) if typing.get_origin(kind) is not Literal else ()
        if inspect.isclass(kind) and not args and kind.__module__ != "builtins":
            return kind
        if args:
            return _first_class(args[-1])
    return object


def find_class(name: str, base: type, path: str) -> type:
    """Import a class by its path, or find a subclass of ``base`` by its bare name.

    Raises:
        ConfigError: when there is no such class; the message suggests the nearest names.
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
        found = getattr(module, class_name, None)
        if inspect.isclass(found):
            return found
        known = [
            f"{module_name}.{n}" for n, member in vars(module).items() if inspect.isclass(member)
        ]
    spelled = {each.lower(): each for each in known}
    nearest = [spelled[each] for each in _close(name.lower(), spelled)]
    raise ConfigError(_with_hint(f"{path}: there is no class {name}", nearest, known))


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


def _all_keys(schema: Schema, path: str) -> Iterator[str]:
    """Iterate over the keys of a group, then over those of nested groups: users may leave out the
    nested group of a key.

    Of other libraries' classes only the trainer's keys are ones that users know.
    """
    yield from (f"{path}{key}" for key in schema)
    for key, annotation in schema.items():
        for kind in alternatives(annotation):
            if inspect.isclass(kind) and (_is_ours(kind) or kind is Trainer):
                for variant in subclasses(kind) if inspect.isabstract(kind) else [kind]:
                    yield from _all_keys(constructor_keys(variant) or {}, f"{path}{key}.")


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("ragen_pl", "callbacks")


# --- words ----------------------------------------------------------------------------------------


def _nearest_keys(key: str, known: Sequence[str]) -> list[str]:
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
        groups = dict.fromkeys(name.partition(".")[0] for name in known if "." in name)
        below = {
            group: [
                name.removeprefix(f"{group}.") for name in known if name.startswith(f"{group}.")
            ]
            for group in get_close_matches(head, groups)
        }
        group = next((each for each in below if rest in below[each]), next(iter(below), None))
        if group is not None:
            return [f"{group}.{name}" for name in _nearest_keys(rest, below[group])] or [group]
    return _close(key, known)


def _close(name: str, known: Sequence[str] | Mapping[str, Any]) -> list[str]:
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


def _with_hint(text: str, nearest: Sequence[str], known: Sequence[str]) -> str:
    if nearest:
        return f"{text}\n  did you mean {' or '.join(nearest)}?"
    here = [name.rpartition(".")[2] for name in known]
    return f"{text}\n  known: {', '.join(here)}" if here else f"{text}\n  there are none here"
