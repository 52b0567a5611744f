"""Errors of the parser about keys and classes, worded with the nearest names that exist.

The parser decides what a configuration may hold, but it reports a misspelled key inside a list or a
nested group as a failed union of types, a page long. The exceptions that caused the report hold the
path of the key, and the constructors on that path give the names that exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ragen_pl.cli.config.files import COMMANDS, config_paths, read_config
from ragen_pl.cli.config.given_keys import every_setting, last_given
from ragen_pl.cli.config.messages import has_no_default
from ragen_pl.cli.config.misplaced import misplaced
from ragen_pl.cli.config.nearest import nearest_keys, with_hint
from ragen_pl.cli.config.schema import (
    Schema,
    all_keys,
    annotation_of,
    constructor_keys,
    find_class,
    first_class,
    is_abstract,
    subclasses,
)
from ragen_pl.cli.config.unfit_class import reported, unfit_class
from ragen_pl.errors import ConfigError

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
    "optimizer": "model.optimization",
    "lr_scheduler": "model.optimization.final_lr_fraction",
    "gpus": "trainer.devices",
    "trainer.gpus": "trainer.devices",
    "trainer.num_processes": "trainer.devices",
    "resume_from_checkpoint": "ckpt_path",
    "trainer.resume_from_checkpoint": "ckpt_path",
    "trainer.auto_lr_find": "model.optimization.lr",
    "trainer.auto_scale_batch_size": "model.optimization.tokens_per_micro_batch",
}
"""Keys by names that other programs give them, or Lightning gave them; none of them exists."""
_NO_DEFAULT = re.compile(r"([\w, ]+) must be set: ([\w.]+) has no default for it")
_OF_CLASS = ("class_path", "init_args", "dict_kwargs")
"""Keys of a mapping that chooses a class."""
_NO_GROUP = re.compile(r"([\w.]+) is (.*); it must be null")


def explain(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError:
    """Return an error that names the unknown key or class behind the parser's error.

    If no unknown name is the cause, it is the parser's error, with the key as it was given.

    Args:
        argv: The prepared command line that was parsed.
        schema: Top-level keys of the configuration.
    """
    if found := misplaced(error, argv, schema):
        return found
    path, keys, text = "", schema, ""
    kind = base = None
    cause: BaseException | None = error
    while cause is not None:
        is_news, text = str(cause) != text, str(cause)  # else the same report, raised again
        if is_news and (match := _KEY.match(text)):
            # A group's keys are reported as a whole.
            path = match[1] if match[1].startswith(f"{path}.") else f"{path}{match[1]}"
            base = annotation_of(keys, match[1])
        elif match := _CLASS.match(text):
            try:
                kind = _chosen_class(match[1], first_class(base), path, argv)
            except ConfigError as unknown:
                return unknown
            keys = constructor_keys(kind) or {}
            path += "." if kind.__bases__ == (object,) else ".init_args."
        elif match := _OPTION.match(text):
            key = ".".join(part for part in match.groups() if part)
            if not path and (below := _below_a_command(key, schema, argv)):
                return below
            if beside := _beside_class_path(key.partition(".")[0], argv):
                return beside
            return _foreign_key(key, path, kind, base, argv) or _unknown_key(key, path, keys, argv)
        cause = cause.__cause__ or cause.__context__
    return (
        _without_default(error, argv)
        or _unfit(error, argv, schema)
        or _no_group(error, argv, schema)
        or _placed(error, argv)
    )


def _below_a_command(unknown: str, schema: Schema, argv: Sequence[str]) -> ConfigError | None:
    """Return an error about a key below the name of a command, where Lightning has it in a file for
    several commands; None for any other key.

    Args:
        unknown: The key at the top level that the parser does not know.
    """
    command, _, key = unknown.partition(".")
    if command not in COMMANDS or command in schema:  # report is both
        return None
    for file in config_paths(argv):
        section = read_config(file).get(command)
        if isinstance(section, dict) and section:
            return ConfigError(
                f"{file} has a section {command}, but a config is one for all commands\n"
                f"  move what is below {command} to the top level: {', '.join(map(str, section))}"
            )
    return ConfigError(
        f"unknown key {unknown}: the command stands before the keys, not in them"
        + (f"\n  did you mean {key}?" if key else "")
    )


def _without_default(error: ConfigError, argv: Sequence[str]) -> ConfigError | None:
    """Return an error with the whole names of required arguments of a class; None if the error is
    about something else."""
    match = _NO_DEFAULT.fullmatch(str(error))
    if match is None:
        return None
    given = dict(every_setting(argv))
    names, kind = match[1].split(", "), match[2].rpartition(".")[2]
    taken_from = ""
    for at, value in given.items():
        place = at.removesuffix(".class_path")
        is_set = all(f"{place}.init_args.{n}" in given or f"{place}.{n}" in given for n in names)
        if not isinstance(value, str) or value.rpartition(".")[2] != kind:
            continue
        if not is_set:
            return ConfigError(has_no_default(kind, match[1], place))
        taken_from = place
    if not taken_from:
        return None
    return ConfigError(
        f"{has_no_default(kind, match[1], taken_from)}\n"
        "  another class_path takes the configured init_args away: give them again, after it"
    )


def _beside_class_path(unknown: str, argv: Sequence[str]) -> ConfigError | None:
    """Return an error that names an argument which stands beside a ``class_path``; None if none
    does.

    Args:
        unknown: The key that the parser does not know: the argument, or ``class_path``.
    """
    for at, value in every_setting(argv):
        beside = [key for key in value if key not in _OF_CLASS] if isinstance(value, dict) else []
        if not beside or "class_path" not in value or unknown not in ("class_path", *beside):
            continue
        key = str(beside[0])
        if get_close_matches(key, ["init_args"]):
            return ConfigError(f"unknown key {at}.{key}\n  did you mean {at}.init_args?")
        return ConfigError(
            f"{at}.{key} stands beside class_path, where no arguments are\n"
            f"  put it below init_args: {at}.init_args.{key}"
        )
    return None


def _no_group(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError | None:
    """Return an error that names a key of a group, or the class to choose, where a plain value was
    given; None if the error is about something else."""
    match = _NO_GROUP.fullmatch(str(error))
    kind = first_class(annotation_of(schema, match[1])) if match else object
    keys = constructor_keys(kind)
    if match is None or kind is object:
        return None
    if keys and not is_abstract(kind):
        return ConfigError(
            f"{match[1]} is {match[2]}, but it is a group of keys, or null\n"
            f"  set its keys, such as {match[1]}.{next(iter(keys))}"
        )
    place, _ = last_given(argv, match[1], lambda _, value: str(value) == match[2])
    place = place.removesuffix(".class_path")
    return ConfigError(
        f"{place} is {match[2]}, but it is a class to choose\n  set {place}.class_path to its name"
    )


def _unfit(error: ConfigError, argv: Sequence[str], schema: Schema) -> ConfigError | None:
    """Return an error that says why a class cannot be built; None if it is about something else."""
    found = reported(error)
    if found is None:
        return None
    key, name = found
    place, _ = last_given(argv, key, lambda _, value: bool(value == name))
    return unfit_class(
        place.removesuffix(".class_path"), name, first_class(annotation_of(schema, key))
    )


def _placed(error: ConfigError, argv: Sequence[str]) -> ConfigError:
    """Return an error about a value with the whole key as it was given: the parser leaves out the
    names of a mapping's entries."""
    match = re.match(r"([\w.]+)\.(\w+) is (.*); it must be ", str(error))
    if match is None:
        return error
    group, key, value = match.groups()
    place, _ = last_given(
        argv,
        group,
        lambda at, given: (
            at.startswith(f"{group}.") and at.endswith(f".{key}") and str(given) == value
        ),
    )
    return error if place == group else ConfigError(place + str(error)[match.end(2) :])


def _chosen_class(name: str, base: type, path: str, argv: Sequence[str]) -> type:
    return find_class(name, base, last_given(argv, path, lambda _, value: bool(value == name))[0])


def _unknown_key(key: str, path: str, keys: Schema, argv: Sequence[str]) -> ConfigError:
    """Return an error for an unknown key, with the nearest names of the innermost known group."""
    head, _, rest = key.partition(".")
    inner = constructor_keys(first_class(keys.get(head))) if rest else None
    if inner:
        return _unknown_key(rest, f"{path}{head}.", inner, argv)
    whole = f"{path}{key}"
    typed = whole.replace(".init_args", "")
    place, value = last_given(argv, path, lambda at, _: f".{at}".endswith(f".{key}"))
    # Unlike ``path``, the place has the names that users choose.
    group = place.removesuffix(key) if f".{place}".endswith(f".{key}") else path
    if path.endswith(".init_args.") and not group.endswith(".init_args."):
        group += "init_args."
    nearest = [f"{group}{name}" for name in nearest_keys(key, list(all_keys(keys, "")))]
    if f"{path}{key}" in _ALIASES:
        nearest = [_ALIASES[f"{path}{key}"]]
    elif not path and get_close_matches(key, ["help"]):
        nearest = ["--help"]
    text = f"unknown key {whole if place == typed else place}"
    if value is not None and not isinstance(value, dict | list):
        text += f" (value {value})"
    return ConfigError(with_hint(text, nearest, list(keys)))


def _foreign_key(
    key: str, path: str, kind: type | None, base: Any, argv: Sequence[str]
) -> ConfigError | None:
    """Return an error that names the class to choose, if a key belongs to another class than the
    default one; None if it does not."""
    place = path.removesuffix(".init_args.")
    named = any(
        at.removesuffix(".class_path") == place and isinstance(value, str)
        for at, value in every_setting(argv)
    )
    if kind is None or named:
        return None
    others = [c for c in subclasses(first_class(base)) if key in (constructor_keys(c) or ())]
    if not others:
        return None
    name = others[0].__name__
    return ConfigError(
        f"{place}.{key} is a key of {name}, but {place} is {kind.__name__}\n"
        f"  choose it first: --{place} {name}"
    )
