"""Calls of tools between tags: read as leniently as models write them, and never failing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.models.call_syntax import written_call
from ragen_pl.models.call_tags import CallTags, tags_of

FUNCTION = CallTags(
    named=">\n<parameter=",
    valued=">\n",
    between="\n</parameter>\n<parameter=",
    ended="\n</parameter>",
    bare=">",
)
PAIRS = CallTags(
    named="\n<arg_key>",
    valued="</arg_key>\n<arg_value>",
    between="</arg_value>\n<arg_key>",
    ended="</arg_value>",
    bare="",
)
KINDS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "real": {"type": "number"},
    "flag": {"type": "boolean"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "any_text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
FUNCTION_SCHEMA = {"name": "tool", "parameters": {"type": "object", "properties": KINDS}}
TOOLS = [{"type": "function", "function": FUNCTION_SCHEMA}]
SAFE_TEXT = st.text(st.characters(exclude_characters="<>\r", exclude_categories=["Cs"])).filter(
    lambda text: text == text.strip()
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": SAFE_TEXT,
    "whole": st.integers(),
    "real": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "texts": st.lists(SAFE_TEXT),
    "maybe": st.none() | st.integers(),
    "any_text": SAFE_TEXT,
}


def dumped(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


@pytest.mark.parametrize("tags", [FUNCTION, PAIRS], ids=["function", "pairs"])
@given(data=st.data())
def test_what_is_written_is_read_with_its_types(tags: CallTags, data: st.DataObject) -> None:
    arguments = data.draw(st.fixed_dictionaries({}, optional=VALUES))
    call = dumped("tool", arguments)
    assert tags.read(written_call(call, tags), TOOLS) == call


@pytest.mark.parametrize("tags", [FUNCTION, PAIRS], ids=["function", "pairs"])
@given(st.text() | st.text(alphabet="<>/=\n aparmetgkyvlu_"))
def test_any_text_is_a_call_or_none(tags: CallTags, text: str) -> None:
    found = tags.read(text, TOOLS)
    assert found is None or json.loads(found)["name"].split() != []


@pytest.mark.parametrize(
    ("tags", "text", "arguments"),
    [
        (FUNCTION, "tool><parameter=whole>3</parameter>", {"whole": 3}),
        (FUNCTION, " tool>\n<parameter= text >\n 3\n\n</parameter>\n", {"text": " 3\n"}),
        (FUNCTION, "tool>\n<parameter=whole>\nthree\n</parameter>", {"whole": "three"}),
        (FUNCTION, "tool>\n<parameter=real>\nNaN\n</parameter>", {"real": "NaN"}),
        (FUNCTION, "tool>\n<parameter=other>\n3\n</parameter>", {"other": "3"}),
        (FUNCTION, "tool>\n<parameter=flag>\nTrue\n</parameter>", {"flag": True}),
        (FUNCTION, "tool>\n<parameter=maybe>\nNone\n</parameter>", {"maybe": None}),
        (FUNCTION, "tool>\n<parameter=text>\nTrue\n</parameter>", {"text": "True"}),
        (FUNCTION, "tool>\n", {}),
        (PAIRS, "tool\n<arg_key>flag</arg_key><arg_value>true</arg_value>", {"flag": True}),
        (PAIRS, "tool\n", {}),
    ],
)
def test_spaces_may_be_missing_and_odd_values_are_left_to_the_environment(
    tags: CallTags, text: str, arguments: dict[str, Any]
) -> None:
    assert tags.read(text, TOOLS) == dumped("tool", arguments)


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        (FUNCTION, ""),
        (FUNCTION, "tool"),
        (FUNCTION, "two words>"),
        (FUNCTION, "tool>\n<parameter=text>\n3"),
        (FUNCTION, "tool>\n<parameter=text\n3\n</parameter>"),
        (FUNCTION, f"tool>{2 * '<parameter=text>3</parameter>'}"),
        (PAIRS, "I call tool"),
        (PAIRS, "tool<arg_key>text</arg_key>3"),
    ],
)
def test_what_is_no_call_is_none(tags: CallTags, text: str) -> None:
    assert tags.read(text, TOOLS) is None


def test_other_texts_are_written_as_they_are() -> None:
    for text in ("search[Oslo]", '{"name": "tool"}', "[1]", '{"name": 1, "arguments": 3}'):
        assert written_call(text, FUNCTION) == text


@pytest.mark.parametrize(
    "pieces",
    [
        (None, None, None),
        (["(", ")"], ["(", " ", "=", ")"], ["(", " ", "=", " ", "=", ")"]),
        (["<a>", "</a>"], ["<b>", "|", "=", "</a>"], ["<b>", "|", "=", ",", "=", "</a>"]),
    ],
    ids=["unwritten", "nothing between name and argument", "another opening"],
)
def test_templates_without_tags_have_none(pieces: Any) -> None:
    assert tags_of(pieces) is None
