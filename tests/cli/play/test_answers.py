"""What a person types becomes the response that an agent would have given."""

from __future__ import annotations

import pytest

from ragen_pl.cli.play.answers import UnreadableError, response_of
from ragen_pl.cli.play.commands import Command, command_of
from ragen_pl.envs import Sokoban
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.prompts import Prompts
from tests.support.words import vocabulary

MOVES = ("Up", "Down", "Left", "Right")
ARMS = ("Arm", "Arm two", "Real Estate")


@pytest.fixture(scope="module")
def chat() -> Chat:
    language = EmbeddedModel().build_without_weights(vocabulary(Prompts(), Sokoban(), 3))
    return Chat(Prompts(), language.tokenizer, language.markers, 3)


@pytest.mark.parametrize(
    ("line", "known", "actions"),
    [
        ("up up left", MOVES, ("Up", "Up", "Left")),
        ("U || l", MOVES, ("Up", "Left")),
        ("Right,Down", MOVES, ("Right", "Down")),
        ("arm two arm", ARMS, ("Arm two", "Arm")),
        ("real estate", ARMS, ("Real Estate",)),
        ("<think>go</think><answer>Up || Left</answer>", MOVES, ("Up", "Left")),
        ("go</think><answer>Up</answer>", MOVES, ("Up",)),
    ],
)
def test_actions_are_read(
    chat: Chat, line: str, known: tuple[str, ...], actions: tuple[str, ...]
) -> None:
    parsed = chat.parse(response_of(line, chat, known), known)
    assert parsed.actions == actions
    assert parsed.is_valid


def test_free_text_is_one_action(chat: Chat) -> None:
    assert chat.parse(response_of("open the door", chat, None), None).actions == ("open the door",)


@pytest.mark.parametrize(("line", "why"), [("fly", "not among"), ("a", "may be several")])
def test_what_names_no_action_is_told(chat: Chat, line: str, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        response_of(line, chat, ("Alpha", "Alps"))


def test_a_wrong_format_is_played_as_the_agents_would_be(chat: Chat) -> None:
    parsed = chat.parse(response_of("<think>x</think> Up", chat, MOVES), MOVES)
    assert not parsed.is_valid


def test_commands_by_their_first_letters() -> None:
    assert command_of("/q") is Command.QUIT
    assert command_of("/hi") is Command.HINT
    assert command_of("up") is None
    with pytest.raises(ValueError, match="no command"):
        command_of("/x")
