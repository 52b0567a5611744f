"""Any response can be parsed, in linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.rollout.responses import find_blocks, parse_response
from ragen_pl.types import FormatFault

MOVES = ("Up", "Down", "Left", "Right")


@given(st.text(), st.booleans())
def test_parsing_is_total(text: str, think: bool) -> None:
    parsed = parse_response(text, think=think, known=MOVES, max_actions=3)
    assert set(parsed.actions) <= set(MOVES)
    assert len(parsed.actions) <= 3


TAGS = ("<think>", "</think>", "<answer>", "</answer>", " ", "Up")


@given(st.lists(st.sampled_from(TAGS), max_size=12).map("".join))
def test_blocks_are_found_where_a_plain_search_finds_them(text: str) -> None:
    plain = {
        True: re.search(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", text, re.DOTALL),
        False: re.search(r"<answer>(.*?)</answer>", text, re.DOTALL),
    }
    for think, expected in plain.items():
        found = find_blocks(text, think=think)
        assert (found and found.span()) == (expected and expected.span())
        assert (found and found.groups()) == (expected and expected.groups())


@pytest.mark.parametrize("tags", ["<think>", "<think></think>", "<think>a</think> <answer>"])
def test_a_response_of_nothing_but_tags_is_parsed_at_once(tags: str) -> None:
    begin = time.monotonic()
    parsed = parse_response(tags * 20_000, think=True, known=MOVES, max_actions=3)
    assert not parsed.actions
    assert time.monotonic() - begin < 5


@given(st.lists(st.sampled_from([*MOVES, "Fly", "", "||", "</answer>", "<think>"]), max_size=6))
def test_valid_means_every_part_was_known(parts: list[str]) -> None:
    text = "<think>x</think><answer>" + " || ".join(parts) + "</answer>"
    parsed = parse_response(text, think=True, known=MOVES, max_actions=3)
    clean = 0 < len(parts) <= 3 and set(parts) <= set(MOVES)
    assert parsed.is_valid == clean
    if clean:
        assert parsed.actions == tuple(parts)


@pytest.mark.parametrize(
    ("text", "actions", "fault"),
    [
        ("<think>a</think><answer>Up || down</answer>", ("Up", "Down"), None),
        ("<think>a</think>\n<answer> Up </answer>\n", ("Up",), None),
        ("<think>a</think><answer>Up || Fly || Left</answer>", ("Up", "Left"), "unknown_action"),
        ("<think>a</think><answer>Up || Fly</answer> and more", ("Up",), "unknown_action"),
        ("<think>a</think><answer>Up || Up || Up || Up</answer>", ("Up",) * 3, "too_many_actions"),
        ("<think>a</think><answer></answer>", (), "no_answer"),
        ("<think>a</think><answer>Up</answer> and more", ("Up",), "outside_text"),
        ("Well: <think>a</think><answer>Up</answer>", ("Up",), "outside_text"),
        ("<think>a<answer>Up</answer>", (), "no_answer"),
        ("", (), "no_answer"),
    ],
)
def test_parsing_by_example(text: str, actions: tuple[str, ...], fault: str | None) -> None:
    parsed = parse_response(text, think=True, known=MOVES, max_actions=3)
    assert (parsed.actions, parsed.fault) == (actions, fault)
    assert parsed.is_valid == (fault is None)


def test_free_text_is_one_action() -> None:
    text = "<answer> go || north </answer>"
    parsed = parse_response(text, think=False, known=None, max_actions=1)
    assert (parsed.actions, parsed.fault) == (("go || north",), None)
    empty = parse_response("<answer> </answer>", think=False, known=None, max_actions=1)
    assert (empty.actions, empty.fault) == ((), "no_answer")


def test_every_fault_is_told_in_words() -> None:
    told = [fault.told for fault in FormatFault]
    assert len(set(told)) == len(told) == 6
