"""Who plays: a person, a policy, the environment's expert or random moves."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable

from ragen_pl.cli.play.answers import UnreadableError, response_of
from ragen_pl.cli.play.commands import Command
from ragen_pl.cli.play.game import Game
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.actors import Actor
from ragen_pl.types import Completion, Generate, Request, Sampling

Ask = Callable[[Game], str | Command]
"""Function that asks a person for an answer; it handles commands that do not leave the game."""


class GamePlayer(ABC):
    """Author of the responses of a game."""

    is_watched = True
    """Whether somebody else than the player looks on, at their own pace."""

    @abstractmethod
    def answer(self, game: Game, request: Request) -> Completion | Command:
        """Return the response to a request, or the command that leaves the game."""


class Person(GamePlayer):
    """A person at the keyboard."""

    is_watched = False

    def __init__(self, ask: Ask, tell: Callable[[str], None]) -> None:
        self._ask, self._tell = ask, tell

    def answer(self, game: Game, request: Request) -> Completion | Command:
        while True:
            given = self._ask(game)
            if isinstance(given, Command):
                return given
            try:
                text = response_of(given, game.chat, game.episode.env.actions)
            except UnreadableError as error:
                self._tell(str(error))
                continue
            completion = game.chat.written(text)
            length, limit = len(completion.token_ids), game.rollout.max_response_tokens
            if length > limit:
                self._tell(f"this answer takes {length} tokens; the agent's may take {limit}")
            return completion


class PolicyPlayer(GamePlayer):
    """A policy, sampled as in an evaluation."""

    def __init__(self, generate: Generate, temperature: float) -> None:
        self._generate, self._temperature = generate, temperature

    def answer(self, game: Game, request: Request) -> Completion | Command:
        sampling = Sampling(self._temperature, game.rollout.max_response_tokens)
        (completion,) = self._generate([request], sampling)
        return completion


class ActorPlayer(GamePlayer):
    """A player without a model, whose moves are written down as responses.

    Raises:
        ConfigError: when the environment does not offer what the player needs.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def answer(self, game: Game, request: Request) -> Completion | Command:
        if not self._actor.can_play(game.start.env):
            name = type(game.start.env).__name__
            raise ConfigError(f"--player is {self._actor.name}, which cannot play {name}")
        episode = game.episode
        rng = random.Random(f"{episode.episode_id} {request.number}")
        move = self._actor.act(episode.env, rng, episode.max_actions)
        return game.chat.written(game.chat.response_text(move.thought, move.actions))
