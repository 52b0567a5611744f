"""Calls in the forms that models write, and everything that is none."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.tools.calls import LONGEST, Call, CallForm, WrongCallError, read_call, written
from ragen_pl.envs.tools.schema import ToolSchema


def schema(name: str, **kinds: str) -> ToolSchema:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    return ToolSchema(name, "", {"properties": properties, "required": list(kinds)})


_SIDES = {"side": {"type": "string", "enum": ["left", "right"]}}
_TURN = ToolSchema("turn", "", {"properties": _SIDES, "required": ["side"]})
SCHEMAS = {
    each.name: each
    for each in (
        *(schema("find", query="string"), schema("add", a="number", b="number")),
        *(schema("sort", items="array"), _TURN),
    )
}
FIND = Call("find", {"query": "Oslo"})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "find", "arguments": {"query": "Oslo"}}',
        ' \n{"arguments": {"query": "Oslo"}, "name": "find", "id": 3} ',
        '{"name": "find", "parameters": {"query": "Oslo"}}',
        '[{"name": "find", "arguments": {"query": "Oslo"}}]',
        "find[Oslo]",
        " find[Oslo]\n",
    ],
)
def test_the_forms_of_a_call(text: str) -> None:
    assert read_call(text, SCHEMAS) == FIND


def test_brackets_hold_any_text() -> None:
    assert read_call("find[a]b[c]\n]", SCHEMAS).arguments == {"query": "a]b[c]\n"}
    assert read_call("find[]", SCHEMAS).arguments == {"query": ""}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no JSON"),
        ("Oslo", "no JSON"),
        ('{"name": "find", "arguments": {"query": "Oslo"}', "no JSON"),
        (
            "3",
            'a call is {"name": …, "arguments": {…}} with one of the tools find, add',
        ),
        ("[]", "a call is"),
        ('{"name": 3}', "a call is"),
        ('{"name": "find", "arguments": [1]}', "arguments must be an object"),
        (
            '{"name": "fnd", "arguments": {}}',
            "there is no tool 'fnd'; there are find, add",
        ),
        ('{"name": "find", "arguments": {"q": "x"}}', "find takes query; there is no 'q'"),
        ('{"name": "find"}', "find takes query; query is missing"),
        ('{"name": "add", "arguments": {"a": 1, "b": NaN}}', "no JSON that can be read"),
        ('{"name": "add", "arguments": {"a": 1, "b": "2"}}', "b of add is '2'; it must be a num"),
        ('{"name": "add", "arguments": {"a": 1, "b": 1e999}}', "no JSON that can be read"),
        ("turn[up]", "side of turn is 'up'; it must be one of left, right"),
        ("add[1]", "add is not called in brackets"),
        ("nothing[1]", "there is no tool 'nothing'"),
        ("[" * 10_000, "no JSON that can be read"),
        ("9" * 10_000, "no JSON that can be read"),
        ("x" * (LONGEST + 1), f"the call has {LONGEST + 1} characters; {LONGEST} are the most"),
    ],
)
def test_a_wrong_call_is_told_why(text: str, message: str) -> None:
    with pytest.raises(WrongCallError) as told:
        read_call(text, SCHEMAS)
    assert message in str(told.value)
    assert len(str(told.value)) < 300


def test_lists_in_lists_are_told_at_any_depth() -> None:
    for depth in range(1, 1000):
        text = '{"name": "sort", "arguments": {"items": ' + "[" * depth + "]" * depth + "}}"
        try:
            read_call(text, SCHEMAS)
        except WrongCallError:
            continue


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_reading_is_total(text: str) -> None:
    try:
        call = read_call(text, SCHEMAS)
    except WrongCallError:
        return
    assert call.name in SCHEMAS


@given(st.text(max_size=20), st.sampled_from(["json", "brackets"]))
def test_what_is_written_is_read_again(query: str, form: CallForm) -> None:
    text = written(Call("find", {"query": query}), SCHEMAS["find"], form)
    assert (text[:5] == "find[") is (form == "brackets")
    assert read_call(text, SCHEMAS).arguments == {"query": query}


def test_a_hostile_call_is_read_in_time() -> None:
    begin = time.monotonic()
    for text in (
        "find[" * 4000,
        '{"name": ' * 2000,
        "[" * LONGEST,
        "find" + "[" * 9000 + "]" * 9000,
    ):
        with pytest.raises(WrongCallError):
            read_call(text + "x", SCHEMAS)
    assert time.monotonic() - begin < 1.0
