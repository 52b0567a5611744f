"""Calls with arguments in JSON: read whatever a model writes, and written as templates do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.models.call_json import CALL_ID, ListedCall, NamedCall, json_form_of
from ragen_pl.models.call_syntax import written_call

LISTED = ListedCall('[{"name": "', '", "arguments": ', ', "id": "call00000"}]')
PLAIN = NamedCall("", "[ARGS]")
WITH_ID = NamedCall("[CALL_ID]", "[ARGS]")
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)


def dumped(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


@given(st.dictionaries(st.text(), JSONS))
def test_what_is_written_is_read(arguments: dict[str, Any]) -> None:
    call = dumped("tool", arguments)
    for syntax in (LISTED, PLAIN, WITH_ID):
        assert syntax.read(written_call(call, syntax), ()) == call
    assert json.loads(written_call(call, LISTED)) == [
        {"name": "tool", "arguments": arguments, "id": CALL_ID}
    ]


@given(st.text() | st.text(alphabet='[]ARGSCLID_{}": tool'))
def test_any_text_is_a_call_or_none(text: str) -> None:
    for syntax in (PLAIN, WITH_ID):
        found = syntax.read(text, ())
        assert found is None or json.loads(found)["name"].split() != []
        assert "".join(syntax.marked(text)) == text
    assert LISTED.read(text, ()) is not None


@pytest.mark.parametrize(
    ("syntax", "text", "arguments"),
    [
        (PLAIN, ' tool [ARGS] {"a": "]"}\n', {"a": "]"}),
        (PLAIN, "tool[ARGS]", {}),
        (PLAIN, 'tool[ARGS]{"a": "[ARGS]"}', {"a": "[ARGS]"}),
        (PLAIN, 'tool[ARGS]{"a": ', '{"a":'),
        (PLAIN, "tool[ARGS]{}[TOOL_CALLS]tool[ARGS]{}", "{}[TOOL_CALLS]tool[ARGS]{}"),
        (WITH_ID, 'tool[CALL_ID]x[ARGS]{"a": 1}', {"a": 1}),
        (WITH_ID, 'tool[ARGS]{"a": "[CALL_ID]"}', {"a": "[CALL_ID]"}),
        (WITH_ID, "tool[CALL_ID]x[ARGS]" + "[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_that_are_no_json_are_left_to_the_environment(
    syntax: NamedCall, text: str, arguments: object
) -> None:
    assert syntax.read(text, ()) == dumped("tool", arguments)


def test_a_list_is_read_as_its_only_call() -> None:
    assert LISTED.read(' [{"arguments": {"a": "]"}, "name": "tool"}]\n', ()) == dumped(
        "tool", {"a": "]"}
    )
    assert LISTED.read('[{"name": "tool"}]', ()) == dumped("tool", {})
    for text in ('[{"name": "tool"}', "[]", "{}", "[1]", "[[1]]", '[{"name": "a"}, {"name": "b"}]'):
        assert LISTED.read(text, ()) == text


@pytest.mark.parametrize("text", ["", "tool", "tool{}", "[ARGS]{}", "two words[ARGS]{}"])
def test_what_is_no_call_is_none(text: str) -> None:
    assert PLAIN.read(text, ()) is None
    assert WITH_ID.read(text, ()) is None


def test_other_texts_are_written_as_they_are() -> None:
    for text in ("search[Oslo]", '{"name": "tool"}', "[1]", '{"name": 1, "arguments": 3}'):
        assert written_call(text, LISTED) == written_call(text, PLAIN) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"name": "tool0mark", "arguments": {"argument0mark": "value0mark"}}',
        '[{"name": "tool0mark", "arguments": {"argument0mark": "value0mark"}}]',
        '<c>{"function": "tool0mark", "arguments": {"argument0mark": "value0mark"}}</c>',
        'tool0mark: {"argument0mark": "value0mark"}',
    ],
)
def test_other_forms_are_none(text: str) -> None:
    assert json_form_of(text) is None


def test_forms_between_tags() -> None:
    arguments = '{"argument0mark": "value0mark"}'
    assert json_form_of(f"\n<function=tool0mark>{arguments}</function>\n") == (
        "<function=",
        NamedCall("", ">"),
        "</function>",
    )
    listed = f'<calls>[{{"name": "tool0mark", "arguments": {arguments}}}]</calls>'
    assert json_form_of(listed) == (
        "<calls>",
        ListedCall('[{"name": "', '", "arguments": ', "}]"),
        "</calls>",
    )
