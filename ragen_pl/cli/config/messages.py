"""Configuration errors in one to three lines: key, value, remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from ragen_pl.cli.config.files import COMMANDS, CONFIGS, FOLDER, nearest_configs
from ragen_pl.errors import ConfigError

T = TypeVar("T")

_FOREIGN_COMMANDS = {
    "train": "did you mean fit?",
    "run": "did you mean fit?",
    "resume": "did you mean fit, with --ckpt_path last?",
    "eval": "did you mean validate?",
    "evaluate": "did you mean validate?",
    "generate": "did you mean predict?",
    "export": "a run writes its policies itself, to policy/last and policy/best in its folder",
    "help": "did you mean --help?",
}
"""Commands by the names that other programs give them, with what there is here."""

_FAULT = r"[\w.]+ cannot be built: .+"
"""What is said of a constructor that fails (``ConstructorError``)."""

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "dict": "a mapping",
    "Mapping": "a mapping",
    "Sequence": "a list",
    "list": "a list",
    "tuple": "a list",
    "NoneType": "null",
}
_BOUNDS = {"v>0": "above 0", "v>=0": "0 or more"}
_LONGEST = 480
_IS_READING = re.compile(r"Unable to load config |Expected a path but ")
"""A line of the parser's that says of an inline mapping only that it is no file either."""
_LAST_FORM_OF_A_CLASS = "a dict with parameters accepted by the base class (implicit class_path)"
"""The end of the parser's list of what a class may be given as."""


def shorten(message: str) -> str:
    """Reduce the parser's report of a wrong value to the key, the value and what is expected."""
    missing = _missing_package(message)
    if missing:
        return missing
    unset = re.findall(
        r"class_path '([^']+)':\s+the following arguments are required: ([\w, ]+)", message
    )
    if unset:
        return has_no_default(*unset[-1])
    untyped = re.search(r"Parameter '(\w+)' from '([\w.]+?)(?:\.__init__)?' does not sp", message)
    if untyped:
        name, of = untyped.groups()
        return f"{of}: its argument {name} has no type: annotate it, such as {name}: int"
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
        given = "null" if value[1] == "None" else value[1]
        text = f"{key} is {given}; it must be {_either(expected)}"
        return _cut(f"{text}\n  {hint}" if hint else text)
    number = re.search(
        r"Not of type NonNegativeInt: .*?(?:base 10: '([^']*)'|(True|False) not|None)", message
    )
    if key and number:
        given = number[1] or (number[2] or "null").lower()
        return f"{key} is {given}; it must be a number {_BOUNDS['v>=0']}"
    required = re.search(r"arguments are required: (.*)", message)
    if required:
        keys = re.sub(rf"\b(?:{'|'.join(COMMANDS)})\.", "", required[1])
        return f"{keys} must be set: give a config first, such as --config sokoban.yaml"
    valueless = re.search(r"argument (--[^\s:]+): expected one argument", message)
    if valueless:
        return no_value(valueless[1])
    stray = re.match(r"unrecognized arguments: ([^-\s]\S*|-[^-\s]\S*)", message)
    if stray:
        return no_option(stray[1])
    lines = [
        re.sub(r"^(?:(?:Parser key \"[^\"]*\":|-)\s*)+", "", s.strip()) for s in message.split("\n")
    ]
    lines = [line for line in lines if line]
    told = [each for each in lines if not _IS_READING.match(each)]
    if key and told[-1:] == [_LAST_FORM_OF_A_CLASS]:
        return f"{key} is a class to choose: set {key}.class_path to its name"
    if key and not told:  # only that a group's value is no file either
        told = ["it is a group of keys: set them one by one, or name a file that has them"]
    text = "\n  ".join((told or lines)[-3:])
    return _cut(f"{key}: {text}" if key and key not in text else text)


def has_no_default(class_path: str, names: str, place: str = "") -> str:
    """Say of arguments of a class that they have to be set.

    Args:
        names: The arguments, with commas between them.
        place: The key that chooses the class, if it is known.
    """
    before = f"{place}.init_args." if place else ""
    keys = ", ".join(f"{before}{name}" for name in names.split(", "))
    return f"{keys} must be set: {class_path} has no default for it"


def no_value(option: str) -> str:
    """Say of an option that it lacks its value."""
    return f"{option} is given no value; write {option} VALUE"


def no_option(argument: str) -> str:
    """Say of an argument that belongs to no option what it may have been meant for."""
    if argument.startswith("-"):
        return f"{argument} is unknown; the names of options begin with --"
    if (Path(argument) / "config.yaml").is_file():
        return (
            f"{argument} belongs to no option; a run's folder is given as --run_dir {argument}, "
            f"with its --config {Path(argument) / 'config.yaml'}"
        )
    key, is_set, value = argument.partition("=")
    if is_set:
        return f"{argument} belongs to no option; did you mean --{key}={value}?"
    known = {path.stem for path in FOLDER.rglob("*.yaml")}
    known |= {path.stem for path in (*Path().glob("*.yaml"), *Path(CONFIGS).rglob("*.yaml"))}
    nearest = nearest_configs(Path(argument).stem, sorted(known))
    hint = (
        f"did you mean {' or '.join(f'--config {name}' for name in nearest)}?"
        if nearest
        else "a config is given as --config NAME, and a value after its --KEY"
    )
    return f"{argument} belongs to no option; {hint}"


def refuse_unknown_command(argv: Sequence[str]) -> None:
    """Raise an error if a prepared command line does not begin with a command.

    Raises:
        ConfigError: with the command that may have been meant.
    """
    if argv[:1] and argv[0] in COMMANDS:
        return
    named = argv[0] if argv and not argv[0].startswith("-") else None
    if named is None:
        raise ConfigError(f"a command is missing; use one of {', '.join(COMMANDS)}")
    hint = _FOREIGN_COMMANDS.get(named.lower()) or did_you_mean(named.lower(), COMMANDS)
    raise ConfigError(f"command {named} is unknown; {hint or 'use one of ' + ', '.join(COMMANDS)}")


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
        found.append(_KINDS.get(name.rpartition(".")[2], f"a {name.rpartition('.')[2]}"))
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
    raised = re.search(
        r"^\s*- ([\w.<>]+ (?:raised|returned) .+(?:\n {6}.+)*)", message, re.MULTILINE
    )
    if raised is not None:  # a user's class that was tried
        return raised[1].replace("\n      ", "\n  ")
    # If a group may be null, the parser lists the error among the types that do not fit.
    form = r".+" if "Union subtypes" in message else r".+; .+"
    listed = re.search(rf"^\s*- ([\w.]+(?: is |: ){form}|{_FAULT})$", message, re.MULTILINE)
    message = listed[1] if listed else message
    leaves = {**leaves, **_chosen_classes(leaves)}
    match = re.match(r"([\w.]+)(?: is |: )'?([^\s;,']+)", message)
    if match is None:
        return _complete_dotted(message, leaves)
    whole = _ending_in(match[1], leaves)
    if len(whole) > 1:
        whole = [key for key in whole if str(leaves[key]) == match[2]]
    key, rest = whole[0] if len(whole) == 1 else match[1], message[match.end(1) :]
    return key + _complete_dotted(rest, leaves)


def _chosen_classes(leaves: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the class that was chosen for each key that has a ``class_path``."""
    ending = ".class_path"
    return {
        key.removesuffix(ending): str(path).rpartition(".")[2]
        for key, path in leaves.items()
        if key.endswith(ending)
    }


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
