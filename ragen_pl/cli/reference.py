"""The page ``docs/configuration.md``: every key, from the signatures and docstrings behind it.

``python -m ragen_pl.cli.reference`` writes it.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import typing
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import docstring_parser
from lightning.pytorch.cli import LightningArgumentParser

import callbacks
from ragen_pl.cli.config.groups import (
    ALWAYS,
    GROUPS,
    HINDSIGHT_LR,
    LINKED,
    VOCABULARY,
    add_run_keys,
)
from ragen_pl.cli.config.schema import (
    alternatives,
    constructor_defaults,
    constructor_keys,
    is_abstract,
    subclasses,
)
from ragen_pl.distributed.fsdp import FSDP2, FSDP_NAME
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
_COMMAND = "python -m ragen_pl.cli.reference"
_INTRODUCTION = f"""\
# Configuration

Every key with its type, its default, the range that is checked (all other keys at their defaults),
and what it does. Keys of adapters to other packages, of `Code` and of `Proof` are in the docstrings
of their classes: `fit --data.env.help ragen_pl.envs.adapters.OpenSpiel` prints them.
This page is generated from the signatures and docstrings of the classes that receive the keys
(`{_COMMAND}`); a test compares the two.

A key is set in a YAML file (`data: {{rollout: {{group_size: 8}}}}`) or on the command line
(`--data.rollout.group_size 8`), where the latter wins. A key that does not exist is an error that
names the nearest one. Where a class is to choose, `class_path` names it and `init_args` holds its
keys; for the shipped classes the bare name will do (`--model.algorithm.advantage GRPO`), and one of
your own is named by module and class. `ragen-pl fit --help` prints the same keys with their whole
descriptions, `--print_config` the resolved configuration.

The keys of `trainer` are those of Lightning's
[Trainer](https://lightning.ai/docs/pytorch/stable/common/trainer.html); `ckpt_path` is `last`,
`best`, `previous` or the path of a checkpoint.
"""
_HEADER = "| key | type | default | range | what it does |\n|---|---|---|---|---|"
_REQUIRED = object()
_HUGE = 1e6
_POINTS = (-_HUGE, -1.0, 0.0, 0.001, 0.1, 0.5, 1.0, 2.0, 10.0, _HUGE)
"""Numbers that are tried to find a range of numbers, in order."""
_HALVINGS = 60
_DIGITS = 6
"""Decimal places of a bound."""
_COUNTS = range(-2, 65)
"""Integers that are tried to find a range of integers."""
_LARGE = (128, 256, 512, 1000)
"""Further ones, for a bound above them."""
_OPTIONAL = tuple(f"ragen_pl.envs.{name}" for name in ("adapters", "code", "proof"))
"""Described in docs/environments.md: what is needed to try their values may be missing."""
_OURS = ("ragen_pl", "callbacks")
_ABBREVIATIONS = ("e.g", "i.e", "eq", "cf")
_EXAMPLES: dict[Any, Any] = {int: 1, float: 1.0, str: "x"}
"""Values given to required arguments while the range of another argument is determined."""
_TYPES = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "`true`, `false`",
    type(None): "null",
    Any: "any",
}


@dataclass(frozen=True)
class _Key:
    """One argument of a constructor."""

    name: str
    annotation: Any
    default: Any
    description: str


# --- reading constructors -------------------------------------------------------------------------


def _keys(kind: type) -> list[_Key]:
    """List a constructor's arguments."""
    described = {
        each.arg_name: each.description or ""
        for cls in reversed(kind.__mro__)
        if _is_ours(cls)
        for each in docstring_parser.parse_from_object(cls).params
    }
    defaults = constructor_defaults(kind)
    return [
        _Key(name, annotation, defaults.get(name, _REQUIRED), described.get(name, ""))
        for name, annotation in (constructor_keys(kind) or {}).items()
    ]


def _groups(annotation: Any) -> Iterator[type]:
    """Iterate over this package's classes in an annotation, also within containers."""
    for kind in alternatives(annotation):
        for inner in typing.get_args(kind) if typing.get_origin(kind) is not Literal else ():
            yield from _groups(inner)
        if inspect.isclass(kind) and _is_ours(kind) and _choices(kind):
            yield kind


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _OURS


def _choices(kind: type) -> list[type]:
    """List the shipped classes that may be given for a class, itself included, sorted by name."""
    ours = (
        cls
        for cls in (kind, *subclasses(kind))
        if _is_ours(cls) and not cls.__module__.startswith(_OPTIONAL)
    )
    found = {cls for cls in ours if not (cls.__name__.startswith("_") or is_abstract(cls))}
    return sorted(found, key=lambda cls: cls.__name__)


# --- ranges ---------------------------------------------------------------------------------------


def _range(kind: type, key: _Key, keys: Sequence[_Key]) -> str:
    """Find by trial which numbers a constructor accepts; empty if it accepts all or none."""
    kinds = [each for each in alternatives(key.annotation) if each in (int, float)]
    given = {
        other.name: _EXAMPLES.get(other.annotation)
        for other in keys
        if other.default is _REQUIRED and other.name != key.name
    }
    if not kinds:
        return ""

    def accepts(value: float) -> bool:
        try:
            kind(**given, **{key.name: value})
        except (ValueError, TypeError):
            return False
        return True

    return _counts(accepts) if kinds == [int] else _numbers(accepts)


def _counts(accepts: Callable[[int], bool]) -> str:
    taken = [value for value in _COUNTS if accepts(value)]
    if not taken or len(taken) != 1 + taken[-1] - taken[0]:
        return ""  # with gaps it is no interval
    low = "" if taken[0] == _COUNTS[0] else str(taken[0])
    if taken[-1] == _COUNTS[-1]:
        high = _largest(accepts, taken[-1])
    elif any(map(accepts, _LARGE)):
        return ""
    else:
        high = str(taken[-1])
    return _interval(f"[{low}" if low else "", f"{high}]" if high else "")


def _largest(accepts: Callable[[int], bool], taken: int) -> str:
    """Return the largest integer that is accepted, empty if all that are tried are."""
    refused = next((value for value in _LARGE if not accepts(value)), None)
    if refused is None:
        return ""
    while refused - taken > 1:
        middle = (taken + refused) // 2
        taken, refused = (middle, refused) if accepts(middle) else (taken, middle)
    return str(taken)


def _numbers(accepts: Callable[[float], bool]) -> str:
    taken = [place for place, point in enumerate(_POINTS) if accepts(point)]
    if not taken:
        return ""
    low = high = ""
    if taken[0] > 0:
        bound = _bound(accepts, _POINTS[taken[0]], _POINTS[taken[0] - 1])
        low = f"{'[' if accepts(bound) else '('}{bound:g}"
    if taken[-1] < len(_POINTS) - 1:
        bound = _bound(accepts, _POINTS[taken[-1]], _POINTS[taken[-1] + 1])
        high = f"{bound:g}{']' if accepts(bound) else ')'}"
    return _interval(low, high)


def _bound(accepts: Callable[[float], bool], taken: float, refused: float) -> float:
    """Return where numbers between one that is accepted and one that is not begin to be refused."""
    for _ in range(_HALVINGS):
        middle = (taken + refused) / 2
        taken, refused = (middle, refused) if accepts(middle) else (taken, middle)
    return round(taken, _DIGITS) + 0.0  # no negative zero


def _interval(low: str, high: str) -> str:
    """Write bounds with their brackets as an interval or as one inequality."""
    if low and high:
        return f"{low}, {high}"
    if low:
        return f"{'≥' if low[0] == '[' else '>'} {low[1:]}"
    return f"{'≤' if high[-1] == ']' else '<'} {high[:-1]}" if high else ""


# --- writing --------------------------------------------------------------------------------------


def _type(annotation: Any) -> str:
    """Name a type in words."""
    restriction = getattr(annotation, "_type", None)  # a restricted number of jsonargparse's
    if restriction is not None:
        return _type(restriction)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    kinds = alternatives(annotation)
    if len(kinds) > 1:
        return " or ".join(_type(kind) for kind in kinds)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin is tuple:
        count = "" if Ellipsis in args else f"{len(args)} "
        return f"list of {count}{_plural(_type(args[0]))}"
    if origin in (list, Sequence):
        return f"list of {_plural(_type(args[0]))}"
    if origin in (dict, Mapping):
        return f"mapping of names to {_type(args[1])}"
    if inspect.isclass(annotation) and _is_ours(annotation):
        return "class" if len(_choices(annotation)) != 1 else "group"
    return _TYPES.get(annotation, getattr(annotation, "__name__", "any"))


def _plural(noun: str) -> str:
    return {"class": "classes", "text": "texts"}.get(noun, f"{noun}s")


def _value(value: Any) -> str:
    """Write a default as it would stand in YAML."""
    if value is _REQUIRED:
        return "required"
    if _is_ours(type(value)):
        return f"`{type(value).__name__}`"
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{name}: {_value(each)[1:-1]}' for name, each in value.items())}}}`"
    return f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else str(value)
    return '""' if value == "" else repr(value)[1:-1] if isinstance(value, str) else str(value)


def _first_sentence(text: str) -> str:
    """Shorten a description to its first sentence, on one line."""
    whole = " ".join(text.split()).replace("``", "`")
    ends = [match.start() for match in re.finditer(r"\.(?= |$)", whole)]
    fitting = (
        end
        for end in ends
        if not whole[:end].lower().endswith(_ABBREVIATIONS) and whole[:end].count("`") % 2 == 0
    )
    short = whole[: next(fitting, None)]
    return short[:1].upper() + short[1:]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _table(path: str, kind: type) -> Iterator[str]:
    """Write one class's keys as a table."""
    keys = [
        key
        for key in _keys(kind)
        if f"{path}.{key.name}" not in {*LINKED, VOCABULARY, HINDSIGHT_LR}
    ]
    if not keys:
        yield "No keys."
        return
    yield _HEADER
    for key in keys:
        bounds = _range(kind, key, keys)
        text = _first_sentence(key.description)
        yield _row(f"`{key.name}`", _type(key.annotation), _value(key.default), bounds, text)


def _section(path: str, kind: type, done: dict[type, str]) -> Iterator[str]:
    """Write a group of keys: its table, or one table per class to choose, then nested groups.

    Args:
        done: Classes that have been written already, with their paths.
    """
    choices, level = _choices(kind), min(2 + path.replace(".init_args", "").count("."), 4)
    yield f"\n{'#' * level} `{path}`\n"
    if kind in done:
        yield f"As `{done[kind]}`."
        return
    done[kind] = path
    if choices == [kind]:
        inside = path
        yield f"{_about(kind)}\n"
        yield from _table(inside, kind)
    else:
        inside = f"{path}.init_args"
        yield f"One of these classes, or one of your own that derives from `{_name(kind)}`."
        for choice in choices:
            yield f"\n**`{choice.__name__}`.** {_about(choice)}\n"
            yield from _table(inside, choice)
    within = {
        (key.name, inner): None
        for choice in choices
        for key in _keys(choice)
        for inner in _groups(key.annotation)
    }
    for name, inner in within:
        yield from _section(f"{inside}.{name}", inner, done)


def _about(kind: type) -> str:
    """Write the first sentence of a class's docstring, and its import path."""
    return f"{_first_sentence(inspect.getdoc(kind) or '')} (`{_name(kind)}`)."


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _run_keys() -> Iterator[str]:
    """Write the keys of the command itself."""
    yield f"\n## The run\n\n{_HEADER}"
    parser = LightningArgumentParser()
    add_run_keys(parser, "runs/<first config>")
    for action in parser._actions:
        if action.dest in ("help", "print_config"):
            continue
        annotation = getattr(action, "_typehint", action.type)
        text = _first_sentence(action.help or "")
        bounds = _restriction(annotation)
        yield _row(f"`{action.dest}`", _type(annotation), _value(action.default), bounds, text)


def _restriction(annotation: Any) -> str:
    """Return the bounds of one of jsonargparse's restricted number types."""
    found = (getattr(kind, "_expression", "") for kind in alternatives(annotation))
    return ", ".join(text.replace("v>=", "≥ ").replace("v>", "> ") for text in found if text)


def render() -> str:
    """Return the page."""
    parts, done = [_INTRODUCTION, *_run_keys()], dict[type, str]()
    for path, kind in {"data": RolloutDataModule, "model": StarPO, **GROUPS}.items():
        parts += _section(path, kind, done)
    parts.append("\n## `trainer.callbacks`\n")
    parts.append("Shipped callbacks to add with `--trainer.callbacks+=callbacks.<name>`.")
    for name in sorted(callbacks.__all__):
        kind = getattr(callbacks, name)
        if kind not in {*GROUPS.values(), *ALWAYS}:
            parts += [f"\n**`{name}`.** {_about(kind)}\n", *_table("trainer.callbacks", kind)]
    parts.append("\n## `trainer.strategy`\n")
    parts.append(
        f"`{FSDP_NAME}`, or `{{class_path: {_name(FSDP2)}, init_args: …}}`; else Lightning's."
    )
    parts += [f"\n**`FSDP2`.** {_about(FSDP2)}\n", *_table("trainer.strategy", FSDP2)]
    return "\n".join(parts) + "\n"


def main(argv: Sequence[str]) -> None:
    """Write the page, to the path given in ``argv`` if there is one."""
    parser = ArgumentParser(
        prog="python -m ragen_pl.cli.reference", description="Write the page of all keys."
    )
    parser.add_argument("path", nargs="?", type=Path, default=PAGE, help="file to write")
    path: Path = parser.parse_args(argv).path
    path.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
