"""A session of games: the order of events, and what one may type."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from ragen_pl.cli.play.commands import LEAVING, Command, command_of
from ragen_pl.cli.play.game import Game
from ragen_pl.cli.play.players import GamePlayer
from ragen_pl.cli.play.screen import Screen


@dataclass(frozen=True)
class Pace:
    """How fast a game is shown to somebody who watches.

    Args:
        delay: Seconds after each turn; None waits for Enter.
        is_interactive: Whether somebody can type.
    """

    delay: float | None
    is_interactive: bool


class Session:
    """Games one after another.

    Args:
        screen: Where they are shown.
        build_game: Function that returns a game by the number of its start and of its attempt.
        pace: How fast they are shown if somebody watches.
    """

    def __init__(self, screen: Screen, build_game: Callable[[int, int], Game], pace: Pace) -> None:
        self.screen, self._build_game, self._pace = screen, build_game, pace

    def run(self, player: GamePlayer, who: str, first: int, games: int | None) -> None:
        """Play from the first start on; ``games`` None plays until somebody quits."""
        number, attempt = first, 0
        for played in count(1):
            game = self._build_game(number, attempt)
            self.screen.game(game, who)
            if not player.is_watched:
                self.screen.task(game)
            wish = self._play(player, game)
            if wish is None and games is not None and played >= games:
                return
            if wish is None and (self._pace.is_interactive or not player.is_watched):
                wish = self._ask_after(game)
            if wish is Command.QUIT:
                return
            number, attempt = (number, attempt + 1) if wish is Command.AGAIN else (number + 1, 0)

    def _play(self, player: GamePlayer, game: Game) -> Command | None:
        """Play one game; return the command that left it, None if it ended."""
        while (request := game.next_request()) is not None:
            self.screen.before_turn(game)
            answer = player.answer(game, request)
            if isinstance(answer, Command):
                return answer
            turn = game.receive(answer)
            if turn is not None:
                self.screen.after_turn(game, turn, shows_response=player.is_watched)
            if player.is_watched and game.episode.stop_reason is None:
                wish = self._wait(game)
                if wish is not None:
                    return wish
        self.screen.end(game)
        return None

    # --- a person at the keyboard ---------------------------------------------------------------

    def ask(self, game: Game) -> str | Command:
        """Ask a player for an answer; commands that do not leave the game are obeyed here."""
        while True:
            try:
                line = self.screen.ask("answer> ").strip()
            except EOFError:
                return Command.QUIT
            wish = self._obey(line, game)
            if wish is not None:
                return wish
            if line and not line.startswith("/"):
                return line
            if not line:
                self.screen.say("type actions, such as the first letters of their names; or /help")

    def _ask_after(self, game: Game) -> Command:
        """Ask what comes after a game; Enter is the next one."""
        while True:
            try:
                line = self.screen.ask("Enter for the next start, /again or /quit> ").strip()
            except EOFError:
                return Command.QUIT
            if not line:
                return Command.NEXT
            wish = self._obey(line if line.startswith("/") else f"/{line}", game)
            if wish is not None:
                return wish

    def _obey(self, line: str, game: Game) -> Command | None:
        """Obey a command; return it if it leaves the game."""
        screen = self.screen
        try:
            command = command_of(line)
        except ValueError as error:
            screen.say(str(error))
            return None
        if command in LEAVING:
            return command
        if command is Command.HINT:
            screen.hint(game, game.expert_move())
        elif command is Command.STATE:
            screen.state(game)
        elif command is Command.HELP:
            screen.help()
        elif command in (Command.PROMPT, Command.BOARD):
            screen.shows_prompt = command is Command.PROMPT
            if game.episode.stop_reason is None:
                screen.before_turn(game)
        return None

    # --- somebody who watches -------------------------------------------------------------------

    def _wait(self, game: Game) -> Command | None:
        """Wait for the pace; return a command that leaves the game."""
        if not self._pace.is_interactive:
            time.sleep(self._pace.delay or 0.0)
            return None
        if self._pace.delay is not None and not _typed_within(self._pace.delay):
            return None
        while True:
            hint = "" if self._pace.delay is not None else "Enter for the next turn, /help> "
            try:
                line = self.screen.ask(hint).strip()
            except EOFError:
                return Command.QUIT
            if not line:
                return None
            wish = self._obey(line if line.startswith("/") else f"/{line}", game)
            if wish is not None:
                return wish


def _typed_within(seconds: float) -> bool:
    """Wait for a line on the standard input; return whether there is one."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
    except (OSError, ValueError):  # Windows waits on sockets alone
        time.sleep(seconds)
        return False
    return bool(ready)
