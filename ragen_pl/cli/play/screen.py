"""What ``play`` shows: boards, prompts, thoughts, answers and rewards, on a terminal or as plain
lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from ragen_pl.cli.play.actions import actions_of
from ragen_pl.cli.play.commands import EXPLANATIONS, Command
from ragen_pl.cli.play.game import Game, num_actions
from ragen_pl.envs.boundary import calling
from ragen_pl.report.terminal import picture_text
from ragen_pl.rollout.actors import Move
from ragen_pl.runtime.visible_text import one_line, visible
from ragen_pl.types import StopReason, Turn

_COLUMNS, _BOARD_COLUMNS = 80, 48
_LABEL = 8
"""Width of the names before the parts of a turn."""
_ENDS = {
    StopReason.TERMINATED: "the environment ended it",
    StopReason.MAX_TURNS: "no turns left",
    StopReason.MAX_ACTIONS: "no actions left",
    StopReason.TRUNCATED: "the environment cut it off",
    StopReason.CONTEXT_FULL: "no room left in the context",
    StopReason.ENV_ERROR: "the environment failed",
}


class Screen:
    """Output of a session.

    Whatever is written by an environment, a model or a person goes through ``visible`` and is never
    read as markup.

    Args:
        console: Where to show; a console that is no terminal gets plain lines.
        shows_prompt: Whether to begin with the agent's prompt in place of the board.
    """

    def __init__(self, console: Console, *, shows_prompt: bool = False) -> None:
        self.console, self.shows_prompt = console, shows_prompt

    @classmethod
    def on_stdout(cls, *, shows_prompt: bool = False) -> Screen:
        """Return a screen of at most 80 columns on the standard output."""
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:  # an encoding without these characters must not end the game
            reconfigure(errors="replace")
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
        console.width = min(console.width, _COLUMNS) if console.is_terminal else _COLUMNS
        return cls(console, shows_prompt=shows_prompt)

    # --- a game ---------------------------------------------------------------------------------

    def game(self, game: Game, who: str) -> None:
        """Show the title of a game."""
        episode = game.episode
        parts = [episode.env.name, game.start.name]
        if episode.difficulty:
            parts.append(f"difficulty {episode.difficulty}")
        title = visible(" · ".join([*parts, who]))
        self.console.print(Rule(Text(title, "bold"), characters="═", style="blue"))

    def task(self, game: Game) -> None:
        """Show what the task is, for a person who plays."""
        env = game.episode.env
        if game.episode.stop_reason is not None:  # it has failed already
            return
        with calling("instruction"):
            self._block("task", env.env.instruction)
        first, *others = actions_of(env).split("\n")
        limit = f"(up to {game.episode.max_actions} a turn)"
        self._block("actions", "\n".join((f"{first}  {limit}", *others)))

    def before_turn(self, game: Game) -> None:
        """Show what the turn begins with."""
        episode = game.episode
        number, most = len(episode.turns) + 1, game.rollout.max_turns
        left = episode.actions_left
        title = f"turn {number} of {most} · {left} action{'s' * (left != 1)} left"
        self.console.print(Rule(Text(title), align="left", characters="─", style="dim"))
        if self.shows_prompt:
            self.plain(game.prompt())
        else:
            self.board(game)

    def board(self, game: Game) -> None:
        """Draw the current state if there are colors and a drawing; else show its text."""
        episode = game.episode
        drawing = None
        if self.console.color_system is not None and episode.stop_reason is not (
            StopReason.ENV_ERROR
        ):
            with calling("draw"):
                drawing = episode.env.env.draw(episode.env.state())
        if drawing is None:
            self.plain(episode.observation)
        else:
            columns = min(_BOARD_COLUMNS, self.console.width - 2)
            self.console.print(Padding(picture_text(drawing.picture(), columns), (0, 2)))

    def after_turn(self, game: Game, turn: Turn, *, shows_response: bool) -> None:
        """Show a turn: the response unless a person has just typed it, what became of it, and the
        reward by term."""
        if shows_response:
            self._response(game, turn)
        executed = ", ".join(turn.actions) or "nothing"
        valid = "valid" if turn.format_fault is None else f"invalid: {turn.format_fault.told}"
        judged = {None: "", True: ", true thought", False: ", untrue thought"}
        correct = turn.thought_correct if turn.thought else None
        style = "green" if turn.is_valid else "red"
        self._block("played", f"{executed} ({valid}{judged[correct]})", style)
        self._block("reward", _terms(turn.rewards))

    def _response(self, game: Game, turn: Turn) -> None:
        parsed = game.chat.parse(turn.response, None)
        if self.shows_prompt or not (parsed.actions or turn.is_valid):
            self._block("response", game.chat.opening_tag + turn.response, "yellow")
            return
        if turn.thought:
            self._block("thought", turn.thought, "cyan")
        self._block("answer", parsed.actions[0] if parsed.actions else "", "yellow")

    def end(self, game: Game) -> None:
        """Show how the game ended, beside the expert's length."""
        episode = game.episode
        assert episode.stop_reason is not None
        if episode.stop_reason is not StopReason.ENV_ERROR:
            self.board(game)
        is_success = episode.success and episode.stop_reason is not StopReason.ENV_ERROR
        total = sum(turn.reward for turn in episode.turns)
        text = "solved" if is_success else f"not solved: {_ENDS[episode.stop_reason]}"
        text += f" · return {total:g} · {_count(num_actions(episode.turns))}"
        optimum = game.expert_length()
        if optimum is not None:
            text += f" (the expert needs {optimum})"
        self.console.print(Text(text, "bold green" if is_success else "bold red"))
        if episode.error:
            self.plain(episode.error)

    # --- on demand ------------------------------------------------------------------------------

    def hint(self, game: Game, move: Move | None) -> None:
        """Show what the expert would answer."""
        if move is None:
            self.say("there is no expert to ask here")
            return
        self._block("expert", game.chat.opening_tag + _answer(game, move), "magenta")

    def state(self, game: Game) -> None:
        """Show the environment's state as data."""
        self.plain(json.dumps(game.episode.env.state(), ensure_ascii=False))

    def help(self) -> None:
        """List the commands."""
        for command in Command:
            self.console.print(Text(f"  /{command:<8}{EXPLANATIONS[command]}"))

    def say(self, text: str) -> None:
        """Show a remark of the program."""
        self.console.print(Text(visible(text), "dim"))

    def plain(self, text: str) -> None:
        """Show text that is not the program's own."""
        self.console.print(Text(visible(text)), soft_wrap=not self.console.is_terminal)

    def _block(self, label: str, text: str, style: str = "") -> None:
        body = Text(visible(text.strip("\n")), style)
        lines = body.wrap(self.console, self.console.width - _LABEL - 1)
        for number, line in enumerate(lines or [Text("")]):
            line.rstrip()
            head = Text(f"{label if number == 0 else '':<{_LABEL}} ", "dim")
            self.console.print(head + line, no_wrap=True, overflow="ignore", crop=False)

    def ask(self, prompt: str) -> str:
        """Ask for a line.

        Raises:
            EOFError: when there is no more input.
        """
        line = self.console.input(escape(prompt), markup=False)
        if not sys.stdin.isatty():
            self.plain(one_line(line))  # a pipe has no echo
        return line


def _answer(game: Game, move: Move) -> str:
    return game.chat.response_text(move.thought, move.actions)


def _terms(rewards: Mapping[str, Any]) -> str:
    """Write reward terms with their sum; terms of 0 beside the environment's are left out."""
    shown = [f"{name} {value:g}" for name, value in rewards.items() if value or name == "env"]
    total = sum(rewards.values())
    return " + ".join(shown) + (f" = {total:g}" if len(shown) > 1 else "")


def _count(actions: int) -> str:
    return f"{actions} action{'s' * (actions != 1)}"
