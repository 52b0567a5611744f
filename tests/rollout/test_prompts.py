"""Templates are checked when they are given, and filled in."""

from __future__ import annotations

import re

import pytest

from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sudoku.env import Sudoku
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.rollout.prompts import Prompts, system_text


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
