"""Calls of tools: what an agent writes, read without ever failing on it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from ragen_pl.envs.tools.schema import ToolSchema, fault

CallForm = Literal["json", "brackets"]
"""Forms in which a call is asked for; both are read."""
LONGEST = 20_000
"""Maximum characters of a call."""
_BRACKETS = re.compile(r"(\w{1,64})\[(.*)\]", re.DOTALL)
_SHOWN = 60


class WrongCallError(Exception):
    """A call that cannot be carried out; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose tool exists and takes these arguments."""

    name: str
    arguments: Mapping[str, Any]


def read_call(text: str, schemas: Mapping[str, ToolSchema]) -> Call:
    """Read a call: a JSON object with ``name`` and ``arguments``, or ``name[text]`` for a tool that
    takes one text.

    ``parameters`` may be written for ``arguments``, and a list around a single call; both occur in
    chat templates.

    Args:
        text: What the agent wrote.
        schemas: The tools by name.

    Raises:
        WrongCallError: if no tool can be called by it.
    """
    if len(text) > LONGEST:
        raise WrongCallError(f"the call has {len(text)} characters; {LONGEST} are the most")
    brackets = _BRACKETS.fullmatch(text.strip())
    if brackets is not None:
        return _in_brackets(brackets[1], brackets[2], schemas)
    given = _json(text)
    if isinstance(given, list) and len(given) == 1:
        (given,) = given
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str):
        raise WrongCallError(_no_call(schemas))
    arguments = given.get("arguments", given.get("parameters", {}))
    if not isinstance(arguments, dict):
        raise WrongCallError("arguments must be an object of names and values")
    return _checked(name, arguments, _known(name, schemas))


def written(call: Call, schema: ToolSchema, form: CallForm) -> str:
    """Return a call as text, in brackets where the tool takes one text."""
    if form == "brackets" and schema.only_text in call.arguments:
        return f"{call.name}[{call.arguments[str(schema.only_text)]}]"
    return json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)


def _in_brackets(name: str, text: str, schemas: Mapping[str, ToolSchema]) -> Call:
    schema = _known(name, schemas)
    if schema.only_text is None:
        raise WrongCallError(f"{name} is not called in brackets; {_no_call(schemas)}")
    return _checked(name, {schema.only_text: text}, schema)


def _checked(name: str, arguments: Mapping[str, Any], schema: ToolSchema) -> Call:
    try:
        wrong = fault(arguments, schema)
    except RecursionError:  # lists in lists
        wrong = f"the arguments of {name} are nested too deeply"
    if wrong is not None:
        raise WrongCallError(wrong)
    return Call(name, arguments)


def _known(name: str, schemas: Mapping[str, ToolSchema]) -> ToolSchema:
    schema = schemas.get(name)
    if schema is None:
        raise WrongCallError(f"there is no tool {name[:_SHOWN]!r}; there are {', '.join(schemas)}")
    return schema


def _no_call(schemas: Mapping[str, ToolSchema]) -> str:
    return (
        'a call is {"name": …, "arguments": {…}} with one of the tools ' + f"{', '.join(schemas)}"
    )


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise WrongCallError(f"the call is no JSON: {error.msg} at character {error.pos}") from None
    except (ValueError, RecursionError):  # a number beyond all bounds; brackets without end
        raise WrongCallError("the call is no JSON that can be read") from None


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
