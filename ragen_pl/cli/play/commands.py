"""What one may type while a game goes on, besides an answer."""

from __future__ import annotations

from enum import StrEnum


class Command(StrEnum):
    """A command, which begins with a slash; its first letter is enough."""

    NEXT = "next"
    AGAIN = "again"
    QUIT = "quit"
    HINT = "hint"
    STATE = "state"
    PROMPT = "prompt"
    BOARD = "board"
    HELP = "help"


LEAVING = (Command.NEXT, Command.AGAIN, Command.QUIT)
"""Commands that end the game on the table."""
EXPLANATIONS = {
    Command.NEXT: "the next start",
    Command.AGAIN: "this start once more",
    Command.QUIT: "the end",
    Command.HINT: "what the expert would answer",
    Command.STATE: "the environment's state as data",
    Command.PROMPT: "show what the agent is shown, token for token",
    Command.BOARD: "show the board",
    Command.HELP: "this list",
}


def command_of(line: str) -> Command | None:
    """Return the command that a line means; None if it is none.

    Raises:
        ValueError: when the line begins with a slash but names no command.
    """
    if not line.startswith("/"):
        return None
    word = line[1:].strip().casefold()
    for command in Command:
        if word and command.startswith(word):
            return command
    raise ValueError(f"{line} is no command; there are {', '.join(f'/{c}' for c in Command)}")
