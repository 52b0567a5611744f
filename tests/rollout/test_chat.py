"""The chat protocol: any response can be parsed, encoding is lossless, templates are checked."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sudoku.env import Sudoku
from ragen_pl.models.embedded import END, USER, build_tokenizer, read_markers
from ragen_pl.rollout.chat import (
    Chat,
    Dialogue,
    Prompts,
    _find_blocks,
    parse_response,
    system_text,
)
from tests.support.words import vocabulary

MOVES = ("Up", "Down", "Left", "Right")


def chat(think: bool = True) -> Chat:
    prompts = Prompts(think=think)
    tokenizer = build_tokenizer(vocabulary(prompts, Sokoban(), 3))
    return Chat(prompts, tokenizer, read_markers(tokenizer), 3)


CHAT = chat()


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
        found = _find_blocks(text, think=think)
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
    ("text", "actions", "is_valid"),
    [
        ("<think>a</think><answer>Up || down</answer>", ("Up", "Down"), True),
        ("<think>a</think>\n<answer> Up </answer>\n", ("Up",), True),
        ("<think>a</think><answer>Up || Fly || Left</answer>", ("Up", "Left"), False),
        ("<think>a</think><answer>Up || Up || Up || Up</answer>", ("Up", "Up", "Up"), False),
        ("<think>a</think><answer></answer>", (), False),
        ("<think>a</think><answer>Up</answer> and more", ("Up",), False),
        ("<think>a<answer>Up</answer>", (), False),
        ("", (), False),
    ],
)
def test_parsing_by_example(text: str, actions: tuple[str, ...], is_valid: bool) -> None:
    parsed = parse_response(text, think=True, known=MOVES, max_actions=3)
    assert (parsed.actions, parsed.is_valid) == (actions, is_valid)


def test_free_text_is_one_action() -> None:
    text = "<answer> go || north </answer>"
    parsed = parse_response(text, think=False, known=None, max_actions=1)
    assert (parsed.actions, parsed.is_valid) == (("go || north",), True)


@given(st.text(st.characters(codec="utf-8"), max_size=30), st.booleans())
def test_thought_tokens_are_those_before_the_closing_tag(thought: str, is_whole: bool) -> None:
    """The embedded tokenizer has one piece for both tags, so the thought ends on a token."""
    text = CHAT.response_text(thought, ("Up",)) if is_whole else thought
    (ids,) = CHAT.encode([text])
    count = CHAT.count_thought_tokens((*ids, CHAT.markers.end))
    parsed = CHAT.parse(CHAT.decode(ids), MOVES)
    assert CHAT.decode(ids[:count]).strip() == parsed.thought
    assert bool(count) == bool(is_whole and thought) or "</think>" in thought


def test_a_token_that_straddles_thought_and_tag_counts_as_tag() -> None:
    prompts = Prompts()
    tokenizer = build_tokenizer(["go up", ".</", "think><answer>"])
    straddling = Chat(prompts, tokenizer, read_markers(tokenizer), 3)
    (ids,) = straddling.encode(["go up.</think><answer>Up</answer>"])
    assert straddling.count_thought_tokens(ids) == 1
    assert chat(think=False).count_thought_tokens(ids) == 0


@given(st.text(st.characters(codec="utf-8")))
def test_tokenizer_is_lossless(text: str) -> None:
    (ids,) = CHAT.encode([text])
    assert CHAT.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_markers_written_in_a_text_stay_text() -> None:
    (ids,) = CHAT.encode([f"{USER} hi {END}"])
    assert not set(ids) & {*CHAT.markers.user, CHAT.markers.end}
    assert CHAT.decode(ids) == f"{USER} hi {END}"


@pytest.mark.parametrize("think", [True, False])
def test_experts_answers_come_back_as_they_were(think: bool) -> None:
    talk = chat(think)
    (ids,) = talk.encode([talk.response_text("P(1,1) Left Up", ("Left", "Up"))])
    parsed = talk.parse(talk.decode(ids), MOVES)
    assert parsed.actions == ("Left", "Up")
    assert parsed.is_valid
    assert len(ids) <= 8


def test_prompts_name_the_unknown_field() -> None:
    with pytest.raises(ValueError, match=r"prompts\.turn uses \{state\}"):
        Prompts(turn="{state} {observation}")
    with pytest.raises(ValueError, match="observation"):
        Prompts(turn="Turn {turn}")


@pytest.mark.parametrize("key", ["system", "turn"])
@pytest.mark.parametrize(
    ("added", "told"),
    [
        (" {", "at '{': write {{ or }} for a brace of the text"),
        (" } so", "at '} so': write {{ or }} for a brace of the text"),
        (" {reward", "at '{reward'"),
        (" {} ", "uses {}; it may use only"),
        (" {0}", "uses {0}; it may use only"),
        (" {stat}", "uses {stat}; it may use only"),
        (" {observation.upper}", "uses {observation.upper}; it may use only"),
        (" {instruction[0]}", "uses {instruction[0]}; it may use only"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(key: str, added: str, told: str) -> None:
    template = getattr(Prompts(), key) + added
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        Prompts(**{key: template})
    assert str(caught.value).startswith(f"prompts.{key} ")
    last = "{format}" if key == "system" else "{observation}"
    assert last in str(caught.value)  # the fields that there are


@pytest.mark.parametrize("template", ["{{observation}}", "{observation}, as {{ observation }}"])
def test_a_field_in_doubled_braces_is_refused(template: str) -> None:
    """It would print ``{observation}``, and the agent would be blind."""
    with pytest.raises(ValueError, match=r"has \{\{observation\}\}.*: write \{observation\}"):
        Prompts(turn=template)


@pytest.mark.parametrize("field", ["{turn:x>q}", "{observation:d}", "{reward!z}", "{turn:{x}}"])
def test_a_format_that_does_not_fit_is_refused_with_its_template(field: str) -> None:
    with pytest.raises(ValueError, match=f"prompts.turn has a field.*{re.escape(field)}"):
        Prompts(turn=f"{field} {{observation}}")


def test_doubled_braces_are_braces_of_the_text() -> None:
    prompts = Prompts(turn='{{"turn": {turn:>2}}} {{{observation}}}')
    dialogue = Dialogue(prompts, 1)
    assert dialogue.turn_text(0, "a {lamp}", 0.0, 5) == '{"turn":  1} {a {lamp}}'


def test_a_prompt_asks_for_one_action_where_actions_are_free_text() -> None:
    """A whole answer is one action there, whatever the limit."""

    class Spoken(Sokoban):
        actions = None  # type: ignore[assignment]

    assert "up to 1 actions a turn" in system_text(Prompts(), Spoken(), 3)
    assert "up to 3 actions a turn" in system_text(Prompts(), Sokoban(), 3)


def test_a_prompt_lists_the_actions_or_says_what_they_look_like() -> None:
    assert "Actions: Up, Down, Left, Right\n" in system_text(Prompts(), Sokoban(), 3)
    prompt = system_text(Prompts(), Sudoku(), 3)
    assert "Actions: row,column,digit, each from 1 to 4\n" in prompt
    assert "1,1,1" not in prompt
