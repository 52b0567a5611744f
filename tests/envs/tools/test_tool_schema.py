"""Schemas of methods, and arguments that do not fit them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

from ragen_pl.envs.tools.schema import ToolSchema, fault, own_methods, schema_of


class Base:
    def inherited(self) -> None: ...


class Box(Base):
    def look(self, place: str, times: int = 1) -> str:
        """Look at a place.

        Args:
            place: Where to look,
                in words.
        """
        return "done"

    def mix(
        self,
        share: float,
        warm: bool,
        kind: Literal["tea", "milk"],
        parts: list[int],
        name: str | None = None,
    ) -> str:
        """Mix."""
        return "done"

    def nothing(self) -> str:
        """Do nothing at all. Really."""
        return "done"

    def _hidden(self) -> None: ...

    @property
    def size(self) -> int:
        return 1

    @classmethod
    def made(cls) -> Box:
        return cls()

    def untyped(self, place):  # type: ignore[no-untyped-def]
        """Look."""

    def silent(self, place: str) -> None: ...

    def several(self, *places: str) -> None:
        """Look."""

    def positional(self, place: str, /) -> None:
        """Look."""

    def odd(self, place: set[str]) -> None:
        """Look."""


LOOK, MIX = schema_of(Box.look), schema_of(Box.mix)


def test_a_method_becomes_a_schema() -> None:
    assert LOOK.as_function() == {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "Where to look, in words."},
                    "times": {"type": "integer", "default": 1},
                },
                "required": ["place"],
            },
        },
    }
    assert MIX.parameters["properties"] == {
        "share": {"type": "number"},
        "warm": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["tea", "milk"]},
        "parts": {"type": "array", "items": {"type": "integer"}},
        "name": {"type": ["string", "null"], "default": None},
    }
    assert MIX.parameters["required"] == ["share", "warm", "kind", "parts"]
    assert schema_of(Box.nothing).description == "Do nothing at all. Really."
    assert json.loads(json.dumps(MIX.as_function())) == MIX.as_function()


def test_public_methods_of_a_subclass_are_found_in_their_order() -> None:
    names = [method.__name__ for method in own_methods(Box, Base)]
    assert names == [
        *("look", "mix", "nothing", "untyped", "silent", "several", "positional", "odd"),
    ]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Box.untyped, "Box.untyped, a tool since .* has no type for place: annotate it"),
        (Box.silent, "Box.silent, .* has no docstring: say in one what the tool does"),
        (Box.several, "Box.several, .* takes \\*places: name each argument"),
        (Box.positional, "Box.positional, .* takes place by position only"),
        (Box.odd, r"Box.odd, .* has a place of type set\[str\]: use str, int"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(method: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema_of(method)


GOOD = {"share": 1, "warm": True, "kind": "tea", "parts": [1, 2]}


@pytest.mark.parametrize(
    "arguments",
    [GOOD, {**GOOD, "share": 0.5}, {**GOOD, "parts": []}, {**GOOD, "name": None}],
)
def test_arguments_that_fit(arguments: dict[str, Any]) -> None:
    assert fault(arguments, MIX) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"share": "1"}, "share of mix is '1'; it must be a number"),
        ({"share": True}, "share of mix is True; it must be a number"),
        ({"warm": 1}, "warm of mix is 1; it must be true or false"),
        ({"kind": "wine"}, "kind of mix is 'wine'; it must be one of tea, milk"),
        ({"parts": [1, 2.0]}, "parts of mix is [1, 2.0]; it must be a list, each an integer"),
        ({"parts": 1}, "parts of mix is 1; it must be a list"),
        ({"name": 3}, "name of mix is 3; it must be a text or null"),
        (
            {"nme": "x"},
            "mix takes share, warm, kind, parts, name; there is no 'nme'",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    assert fault({**GOOD, **change}, MIX) == message


def test_a_missing_argument_is_named() -> None:
    assert fault({}, LOOK) == "look takes place, times; place is missing"
    assert fault({"x": 1}, schema_of(Box.nothing)) == (
        "nothing takes no arguments; there is no 'x'"
    )


def test_a_schema_of_another_program_may_say_more_than_is_checked() -> None:
    schema = ToolSchema("far", "", {"properties": {"a": {"anyOf": [{}]}, "b": True}})
    assert fault({"a": 1, "b": {"c": []}}, schema) is None
    assert fault({"c": 1}, schema) == "far takes a, b; there is no 'c'"
    open_one = ToolSchema("far", "", {"properties": {}, "additionalProperties": True})
    assert fault({"c": 1}, open_one) is None


def test_a_static_method_is_refused() -> None:
    """Its first parameter would be taken for ``self``."""

    class Tools:
        @staticmethod
        def double(number: int) -> str:
            """Double a number."""
            return str(2 * number)

    with pytest.raises(ValueError, match=r"Tools.double would be a tool.*give it self"):
        list(own_methods(Tools, object))


def test_a_default_that_json_cannot_tell_is_left_out() -> None:
    missing = object()

    class Tools:
        def look(self, place: str = missing, far: float = float("inf"), n: int = 3) -> str:  # type: ignore[assignment]
            """Look."""
            return place

    schema = schema_of(Tools.look)
    assert schema.parameters["properties"] == {
        "place": {"type": "string"},
        "far": {"type": "number"},
        "n": {"type": "integer", "default": 3},
    }
    assert schema.parameters["required"] == []


def _counted(method: Callable[..., str]) -> Callable[..., str]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> str:
        return method(*args, **kwargs)

    return call


def _bare(method: Callable[..., str]) -> Callable[..., str]:
    def call(*args: Any, **kwargs: Any) -> str:
        return method(*args, **kwargs)

    return call


class _Held:
    """A decorator that forgets to bind ``self``."""

    def __init__(self, method: Callable[..., str]) -> None:
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        return self.method(*args, **kwargs)


@pytest.mark.parametrize("decorate", [functools.cache, functools.lru_cache(maxsize=2), _counted])
def test_a_method_under_a_decorator_that_keeps_it_is_a_tool(decorate: Any) -> None:
    class Tools:
        @decorate  # type: ignore[untyped-decorator]
        def look(self, place: str, times: int = 1) -> str:
            """Look at a place."""
            return place * times

    (method,) = own_methods(Tools, object)
    schema = schema_of(method)
    assert (schema.name, schema.description) == ("look", "Look at a place.")
    assert [*schema.parameters["properties"]] == ["place", "times"]
    assert Tools().look(place="a", times=2) == "aa"


@pytest.mark.parametrize(
    ("decorate", "told"),
    [
        (_bare, r"a function named _bare\.<locals>\.call"),
        (_Held, "a _Held"),
        (lambda method: functools.partialmethod(method, "here"), "a partialmethod"),
        (functools.singledispatchmethod, "a singledispatchmethod"),
    ],
)
def test_a_method_that_its_decorator_hides_is_refused(decorate: Any, told: str) -> None:
    """It would silently be no tool, or one of another name."""

    class Tools:
        @decorate  # type: ignore[untyped-decorator]
        def look(self, place: str) -> str:
            """Look."""
            return place

    with pytest.raises(ValueError, match=rf"Tools\.look would be a tool, but is {told}, .*wraps"):
        list(own_methods(Tools, object))


def test_callable_helpers_and_classes_are_no_tools() -> None:
    class Tools:
        numbers = dict
        shorten = functools.partial(str.removesuffix, "s")
        count = len

        def look(self) -> str:
            """Look."""
            return "done"

    assert [method.__name__ for method in own_methods(Tools, object)] == ["look"]
