"""Configuration errors in one to three lines: key, value, remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, TypeVar

from ragen_pl.cli.config_files import COMMANDS
from ragen_pl.errors import ConfigError

T = TypeVar("T")

_FAULT = r"[\w.]+ cannot be built: .+"
"""What is said of a constructor that fails (``ConstructorError``)."""

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "dict": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "NoneType": "null",
}
_BOUNDS = {"v>0": "above 0", "v>=0": "0 or more"}
_LONGEST = 480
_IS_READING = re.compile(r"Unable to load config |Expected a path but ")
"""A line of the parser's that says of an inline mapping only that it is no file either."""


def shorten(message: str) -> str:
    """Reduce the parser's report of a wrong value to the key, the value and what is expected."""
    missing = _missing_package(message)
    if missing:
        return missing
    key, innermost = _key(message), _innermost(message)
    value = re.search(r"(?:Got|Given) value: (.*)", message)
    value = value or re.search(r"Not of type \w+: (\S+) does not conform", message)
    expected = _expectations(innermost)
    argument = re.match(r"NestedArg\(key='([^']+)'", value[1]) if value else None
    if key and argument:
        return (
            f"{argument[1]} is given to {key}, which is not a class with arguments\n"
            f"  name the class first: --{key} with its class_path"
        )
    if key and value and expected:
        hint = did_you_mean(value[1], _literals(innermost))
        text = f"{key} is {value[1]}; it must be {_either(expected)}"
        return _cut(f"{text}\n  {hint}" if hint else text)
    required = re.search(r"arguments are required: (.*)", message)
    if required:
        keys = re.sub(rf"\b(?:{'|'.join(COMMANDS)})\.", "", required[1])
        return f"{keys} must be set: give a config first, such as --config sokoban.yaml"
    if "subcommand" in message:
        wrong = re.search(r"invalid choice: '([^']*)'", message)
        given = f"command {wrong[1]} is unknown" if wrong else "a command is missing"
        hint = did_you_mean(wrong[1], COMMANDS) if wrong else ""
        return f"{given}; {hint or 'use one of ' + ', '.join(COMMANDS)}"
    lines = [
        re.sub(r"^(?:(?:Parser key \"[^\"]*\":|-)\s*)+", "", s.strip()) for s in message.split("\n")
    ]
    lines = [line for line in lines if line]
    text = "\n  ".join(([each for each in lines if not _IS_READING.match(each)] or lines)[-3:])
    return _cut(f"{key}: {text}" if key and key not in text else text)


def _missing_package(message: str) -> str:
    """Return what a class in a group says of a package that is not installed; empty if none does.

    The parser lists it among the types that do not fit.
    """
    if "Union subtypes" not in message and "given class_path" not in message:
        return ""
    found = re.search(r"^\s*(?:- )?(.*\bpip install .*)$", message, re.MULTILINE)
    if found is None:
        return ""
    # A class of another library does not say which one it is.
    named = re.findall(r"given class_path '(?:[^']*\.)?(\w+)'", message[: found.start()])
    return f"{named[-1]}: {found[1]}" if named and named[-1] not in found[1] else found[1]


def _either(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def _key(message: str) -> str:
    """Return the whole key, joined from the parts that nested parsers report."""
    keys = re.findall(r"Parser key \"([^\"]+)\"", message)
    if not keys:
        return ""
    outer, inner = str(keys[0]), str(keys[-1])
    if inner.startswith(f"{outer}."):  # a group's keys are reported as a whole
        return inner
    return outer if inner in outer else f"{outer}.{inner}"


def _innermost(message: str) -> str:
    """Return what the parser says of the innermost key: the indented lines below its name.

    What follows is about the groups around it, such as that these may be null.
    """
    lines = message.split("\n")
    last = max((i for i, line in enumerate(lines) if 'Parser key "' in line), default=0)
    depth = _indent(lines[last])
    below = takewhile(lambda line: not line.strip() or _indent(line) > depth, lines[last + 1 :])
    return "\n".join([lines[last], *below])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _literals(message: str) -> list[str]:
    lists = re.findall(r"Expected a typing\.Literal\[(.*?)\]", message)
    return [name.strip().strip("'\"") for names in lists for name in names.split(",")]


def _expectations(message: str) -> list[str]:
    found = _literals(message)
    for name in re.findall(r"Expected a <class '([^']*)'>", message):
        found.append(_KINDS.get(name, f"a {name.rpartition('.')[2]}"))
    for bound in re.findall(r"restriction (v\S+)", message):
        found.append(f"a number {_BOUNDS.get(bound, bound)}")
    return list(dict.fromkeys(found))


def qualify(message: str, leaves: Mapping[str, Any]) -> str:
    """Complete the keys in a constructor's error to those a user sets.

    A constructor knows its own argument (``keep_fraction is 3``) but not its key in the
    configuration (``filter.keep_fraction``).

    Args:
        leaves: Every dotted key of the configuration with its value.
    """
    missing = _missing_package(message)
    if missing:
        return missing
    # If a group may be null, the parser lists the error among the types that do not fit.
    form = r".+" if "Union subtypes" in message else r".+; .+"
    listed = re.search(rf"^\s*- ([\w.]+(?: is |: ){form}|{_FAULT})$", message, re.MULTILINE)
    message = listed[1] if listed else message
    match = re.match(r"([\w.]+)(?: is |: )'?([^\s;,']+)", message)
    if match is None:
        return _complete_dotted(message, leaves)
    whole = _ending_in(match[1], leaves)
    if len(whole) > 1:
        whole = [key for key in whole if str(leaves[key]) == match[2]]
    key, rest = whole[0] if len(whole) == 1 else match[1], message[match.end(1) :]
    return key + _complete_dotted(rest, leaves)


def _ending_in(key: str, leaves: Iterable[str]) -> list[str]:
    # A constructor does not know either that a class_path chose it.
    plain = {whole: f".{whole}".replace(".init_args.", ".") for whole in leaves}
    return [whole for whole, short in plain.items() if short.endswith(f".{key}")]


def _complete_dotted(text: str, leaves: Iterable[str]) -> str:
    """Complete dotted names that end exactly one key, such as ``rollout.max_context``."""

    def complete(match: re.Match[str]) -> str:
        whole = _ending_in(match[0], leaves)
        return whole[0] if len(whole) == 1 else match[0]

    return re.sub(r"(?<![\w./])[a-z_]+(?:\.[a-z_]+)+(?![\w/])", complete, text)


def look_up(option: str, name: str, known: Mapping[str, T]) -> T:
    """Return the entry that an option names.

    Raises:
        ConfigError: when there is no such entry; the message suggests the nearest names.
    """
    if name not in known:
        hint = did_you_mean(name.lower(), known) or f"known: {', '.join(known)}"
        raise ConfigError(f"{option} is {name}, which is not known\n  {hint}")
    return known[name]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the names closest to a word as a question; empty when none is close."""
    found = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""
