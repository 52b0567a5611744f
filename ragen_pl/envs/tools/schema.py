"""Schemas of tools: JSON Schema from a method's signature and docstring, and the check of a call's
arguments against it."""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import docstring_parser

_TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_SAMPLES: Mapping[str, Any] = {"string": "x", "integer": 1, "number": 1.0, "boolean": True}
"""By JSON type: a value of an argument."""
_SHOWN = 60
"""Maximum characters shown of a wrong value."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """What an agent is told of a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of the object of arguments."""

    def as_function(self) -> dict[str, Any]:
        """Return the form that chat templates and OpenAI's interface take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}

    @property
    def only_text(self) -> str | None:
        """The name of the argument, if the tool takes exactly one and this is a text."""
        properties = self.parameters.get("properties", {})
        match list(properties.items()):
            case [(name, {"type": "string"})]:
                return str(name)
        return None


def schema_of(method: Callable[..., Any]) -> ToolSchema:
    """Return the schema of a method.

    Parameters may be texts, numbers, booleans, ``Literal``s of texts, lists of these, or one of
    these or None.

    Args:
        method: The function, ``self`` included.

    Raises:
        ValueError: if it is async, has no docstring, or a parameter without an annotation or of
            another type; the message says what to do.
    """
    what = f"{method.__qualname__}, a tool since its name does not begin with an underscore,"
    if inspect.iscoroutinefunction(method):
        raise ValueError(f"{what} is async, but is answered at once: define it without async")
    described = docstring_parser.parse(inspect.getdoc(method) or "")
    summary = " ".join(filter(None, (described.short_description, described.long_description)))
    if not summary:
        raise ValueError(f"{what} has no docstring: say in one what the tool does")
    hints = typing.get_type_hints(method)
    texts = {each.arg_name: " ".join((each.description or "").split()) for each in described.params}
    properties, required = dict[str, Any](), list[str]()
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError(f"{what} takes *{parameter.name}: name each argument")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ValueError(f"{what} takes {parameter.name} by position only: remove the slash")
        if parameter.name not in hints:
            raise ValueError(f"{what} has no type for {parameter.name}: annotate it")
        kind = _json_type(hints[parameter.name])
        if kind is None:
            raise ValueError(
                f"{what} has a {parameter.name} of type {hints[parameter.name]}: use str, int, "
                "float, bool, Literal of texts, lists of these, or one of these | None"
            )
        if text := texts.get(parameter.name):
            kind["description"] = text
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):  # a mark for a missing value, say, is not told
            kind["default"] = parameter.default
        properties[parameter.name] = kind
    parameters = {"type": "object", "properties": properties, "required": required}
    return ToolSchema(method.__name__, " ".join(summary.split()), parameters)


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _json_type(annotation: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of an annotation; None if there is none."""
    if annotation in _TYPES:
        return {"type": _TYPES[annotation]}
    origin, given = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and all(isinstance(each, str) for each in given):
        return {"type": "string", "enum": list(given)}
    if origin is list and len(given) == 1:
        items = _json_type(given[0])
        return None if items is None else {"type": "array", "items": items}
    if origin in (types.UnionType, typing.Union) and len(given) == 2 and type(None) in given:
        (other,) = (each for each in given if each is not type(None))
        kind = _json_type(other)
        if kind is None or "enum" in kind:
            return None
        return {**kind, "type": [kind["type"], "null"]}
    return None


def sample_arguments(schema: ToolSchema) -> dict[str, Any]:
    """Return arguments that a schema of ``schema_of`` takes."""
    return {name: _sample(kind) for name, kind in schema.parameters["properties"].items()}


def _sample(kind: Mapping[str, Any]) -> Any:
    if "enum" in kind:
        return kind["enum"][0]
    first = kind["type"] if isinstance(kind["type"], str) else kind["type"][0]
    return [_sample(kind["items"])] if first == "array" else _SAMPLES[first]


def own_methods(kind: type, base: type) -> Iterator[Callable[..., Any]]:
    """Iterate over the public methods that subclasses of a base define, in the order in which they
    are written. Class methods, such as those that build an object, are not counted.

    A method may have decorators that keep what they decorate, as ``functools.wraps`` and
    ``functools.lru_cache`` do.

    Args:
        kind: The class.
        base: The class whose names are not counted.

    Raises:
        ValueError: for a static method, whose first parameter is not ``self``, and for a method
            that a decorator hides.
    """
    names = dict.fromkeys(name for each in reversed(kind.__mro__) for name in vars(each))
    for name in names:
        if name.startswith("_") or hasattr(base, name):
            continue
        static = inspect.getattr_static(kind, name)
        if isinstance(static, staticmethod):
            raise ValueError(
                f"{kind.__name__}.{name} would be a tool, but is a static method: give it self, or "
                "a name that begins with an underscore"
            )
        if not _is_method(static, name):
            continue
        if not hasattr(type(static), "__get__") or _name_of(static) != name:
            raise ValueError(
                f"{kind.__name__}.{name} would be a tool, but is {_described(static)}, of which "
                "neither arguments nor docstring are known: define it with def, with "
                "functools.wraps in a decorator of your own, or give it a name that begins with an "
                "underscore"
            )
        yield static


def _is_method(value: object, name: str) -> bool:
    """Return whether a class's attribute is a method, under whatever decorator."""
    if isinstance(value, functools.partialmethod | functools.singledispatchmethod):
        return True
    if not callable(value) or inspect.isclass(value):
        return False
    held = getattr(value, "__dict__", {}).values()  # as in a decorator that is a class
    is_decorated = any(inspect.isfunction(each) and each.__name__ == name for each in held)
    return hasattr(type(value), "__get__") or is_decorated


def _name_of(method: object) -> str | None:
    """Return the name of the function that a method is; None if it is not known."""
    function = inspect.unwrap(method) if callable(method) else None
    return function.__name__ if inspect.isfunction(function) else None


def is_cached(method: Callable[..., Any]) -> bool:
    """Return whether a decorator, such as ``functools.lru_cache``, keeps a method's results."""
    return _has_cache(inspect.unwrap(method, stop=_has_cache))


def _has_cache(method: object) -> bool:
    return hasattr(method, "cache_clear")


def _described(method: object) -> str:
    if inspect.isfunction(method):
        return f"a function named {method.__qualname__}"
    return f"a {type(method).__name__}"


def fault(arguments: Mapping[str, Any], schema: ToolSchema) -> str | None:
    """Return what is wrong with a call's arguments; None if nothing is.

    Of a schema that another program wrote, only what is understood here is checked.
    """
    properties: Mapping[str, Any] = schema.parameters.get("properties", {})
    takes = f"{schema.name} takes {', '.join(properties) or 'no arguments'}"
    unknown = [name for name in arguments if name not in properties]
    if unknown and schema.parameters.get("additionalProperties") in (None, False):
        return f"{takes}; there is no {_shown(unknown[0])}"
    missing = [each for each in schema.parameters.get("required", ()) if each not in arguments]
    if missing:
        return f"{takes}; {missing[0]} is missing"
    for name, value in arguments.items():
        wanted = _mismatch(value, properties.get(name, {}))
        if wanted is not None:
            return f"{name} of {schema.name} is {_shown(value)}; it must be {wanted}"
    return None


def _mismatch(value: Any, schema: Any) -> str | None:
    """Return what a value should have been; None if it is right or cannot be checked."""
    if not isinstance(schema, Mapping):  # JSON Schema allows true and false
        return None
    if "enum" in schema:
        known = list(schema["enum"])
        fits = any(type(value) is type(each) and value == each for each in known)
        return None if fits else f"one of {', '.join(map(str, known))}"
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if not any(_is_of(value, each) for each in kinds):
        return " or ".join(_NAMES.get(str(each), str(each)) for each in kinds)
    if isinstance(value, list):
        wanted = (_mismatch(each, schema.get("items", {})) for each in value)
        first = next((each for each in wanted if each is not None), None)
        return None if first is None else f"a list, each {first}"
    return None


_NAMES = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


def _is_of(value: Any, kind: Any) -> bool:
    """Return whether a value from JSON is of a type of JSON Schema."""
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case "null":
            return value is None
    return True  # a schema without a type, or of a kind that is not checked here


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
