"""``OpenSpiel``: one seat of any sequential game of OpenSpiel, against players of a chosen kind."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from ragen_pl.envs.adapters.players import (
    MCTS,
    MonteCarlo,
    Player,
    RandomPlay,
    advance_choice,
)
from ragen_pl.envs.base import (
    TextEnv,
    hash_without,
    noise_generator,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.packages import load
from ragen_pl.envs.pieces import SampledPieces
from ragen_pl.envs.splits import Split, enter_split

View = Literal["observation", "information_state"]

_MOST_NAMED = 32
"""Actions of the largest game whose actions are a fixed list; those of larger games are free
text."""
_NAMED_GAMES = 4
_NAMED_MOVES = 100
"""Games, and moves of each, in which names of actions must stay what they are at the start."""
_SAMPLED = 40
"""Episodes that the vocabulary is taken from."""
_MOST_OPENINGS = 100
_ENDED = "The game has ended."


class OpenSpiel(TextEnv):
    """A seat of a game of OpenSpiel; chance and the other seats are played by the environment.

    The seed decides the seat and everything before its first decision (dealt cards, moves of those
    who come first, the opening); ``noise_seed`` decides everything later. The reward is what the
    seat's return gains, divided by the largest absolute return of the game. In games of up to 32
    actions these have fixed names; in larger ones an action is the text of a legal action. An
    illegal action changes nothing but counts.

    Args:
        game: A game and its parameters as OpenSpiel spells them, such as ``connect_four`` or
            ``2048(max_tile=64)``. Simultaneous games are played through OpenSpiel's
            ``turn_based_simultaneous_game(game=...)``.
        opponent: The player of the other seats.
        expert: The player that demonstrates; null means ``MCTS``, or ``MonteCarlo`` in games that
            pay before their end.
        rules: Rules of the game for the instruction; OpenSpiel has none in words.
        view: What the agent sees: OpenSpiel's observation, or its information state, which has the
            history as well in games with hidden cards. The other one stands in where a game has
            but one.
        opening: Random moves of all seats before the first decision, for more initial states.
        split: ``train`` or ``eval`` for disjoint initial states, as the agent sees them; ``all``
            for games with too few to divide.
        success_return: Return above which an ended game is a success: 0 for a win, a little less
            than that of a draw if a draw is a success, too.
        success_pattern: Regular expression that the final view of a success contains, in place of
            ``success_return``; for games whose return does not show it, such as 2048.
        illegal_penalty: Reward of an illegal action.
        max_actions: Maximum actions per trajectory.
    """

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        game: str = "tic_tac_toe",
        opponent: Player = RandomPlay(),  # noqa: B008  frozen, so sharing it is safe
        expert: Player | None = None,
        rules: str = "",
        view: View = "observation",
        opening: int = 0,
        split: Split = "train",
        success_return: float = 0.0,
        success_pattern: str | None = None,
        illegal_penalty: float = -0.1,
        max_actions: int = 40,
    ) -> None:
        if opening < 0:
            raise ValueError(f"opening: {opening} is negative; 0 is none")
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        self.game = game
        self.rules, self.opening, self.max_actions = rules, opening, max_actions
        self.view = one_of("view", view, View)
        self.split = one_of("split", split, Split)
        self.success_return, self.illegal_penalty = success_return, illegal_penalty
        self.success_pattern = _compiled(success_pattern)
        loaded = _game(game)
        kind = loaded.get_type()
        self.name = kind.short_name
        pays_late = kind.reward_model.name == "TERMINAL"
        default: Player = MCTS() if pays_late else MonteCarlo()
        self.opponent, self.expert = opponent, default if expert is None else expert
        if loaded.num_players() > 1:
            self.opponent.check(loaded)
        self.expert.check(loaded)
        self._scale = max(abs(loaded.max_utility()), abs(loaded.min_utility())) or 1.0
        self._names = _action_names(game)
        self._state = loaded.new_initial_state()
        self._seat = self._num_actions = 0
        self._illegal: str | None = None
        self._noise = noise_generator(self.name, 0, None)
        self._pieces = SampledPieces()
        everything = [name for names in self._names or () for name in names]
        self.actions = tuple(dict.fromkeys(everything)) or None

    @property
    def instruction(self) -> str:
        """The game, the seat, the rules if they were given, and the cost of illegal actions."""
        loaded = _game(self.game)
        lines = [f"Play {loaded.get_type().long_name}."]
        if self.rules:
            lines.append(self.rules)
        if loaded.num_players() > 1:
            lines.append(f"You are player {self._seat + 1} of {loaded.num_players()}.")
        cost = f"{-self.illegal_penalty:g}"
        lines.append(f"Choose a legal action; another one changes nothing and costs {cost}.")
        return "\n".join(lines)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Take the seat and play up to its first decision, as the seed decides."""
        seed = resolve_seed(self, seed)
        enter_split(seed, self.split, self._begin)
        self._noise = noise_generator(self.name, seed, options)
        players = _game(self.game).num_players()
        return self.render_text(), {"difficulty": f"seat {self._seat + 1}" if players > 1 else ""}

    def _begin(self, seed: int) -> str:
        """Begin a game and return a key of its first decision."""
        rng = random.Random(f"open_spiel {self.game} {self.opening} {seed}")
        self._state, self._num_actions, self._illegal = self._first_decision(rng), 0, None
        if self._names is not None:
            self.actions = self._names[self._seat]
        return self.start_key()

    def _first_decision(self, rng: random.Random) -> Any:
        """Take a seat and return a game at its first decision.

        Raises:
            ValueError: if games keep ending before it.
        """
        for _ in range(_MOST_OPENINGS):
            self._seat = rng.randrange(_game(self.game).num_players())
            state = self._opened(rng)
            if state is not None:
                return state
        raise ValueError(
            f"opening: {_MOST_OPENINGS} games of {self.game} in a row ended within "
            f"{self.opening} moves or before this seat's first; shorten the opening"
        )

    def _opened(self, rng: random.Random) -> Any | None:
        """Return a game after its opening, at the seat's first decision; None if it has ended."""
        state = _game(self.game).new_initial_state()
        moves = 0
        while not state.is_terminal():
            if not state.is_chance_node():
                if moves >= self.opening and state.current_player() == self._seat:
                    return state
                moves += 1
            player = RandomPlay() if moves <= self.opening else self.opponent
            state.apply_action(advance_choice(state, player, rng))
        return None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a legal action and play on to the seat's next decision."""
        refuse_after_end(self, self._has_ended)
        self._num_actions += 1
        before = self._return
        number = self._number_of(action.strip())
        self._illegal = " ".join(action.split())[:40] if number is None else None
        if number is not None:
            self._state.apply_action(number)
            self._play_others()
        reward = (self._return - before) / self._scale
        terminated = self._state.is_terminal()
        info = {"success": terminated and self._has_won(), "is_legal": number is not None}
        reward += self.illegal_penalty if number is None else 0.0
        return self.render_text(), reward, terminated, self._has_ended and not terminated, info

    def _play_others(self) -> None:
        while not self._state.is_terminal() and self._state.current_player() != self._seat:
            self._state.apply_action(advance_choice(self._state, self.opponent, self._noise))

    def _has_won(self) -> bool:
        if self.success_pattern is not None:
            return self.success_pattern.search(self._seen()) is not None
        return self._return > self.success_return

    @property
    def _return(self) -> float:
        return float(self._state.returns()[self._seat])

    @property
    def _has_ended(self) -> bool:
        return self._state.is_terminal() or self._num_actions >= self.max_actions

    def _number_of(self, name: str) -> int | None:
        """Return OpenSpiel's number of a legal action; None if there is none of this name.

        Upper and lower case count only where they tell actions apart, as in chess.
        """
        legal = {self._name_of(number): number for number in self._legal_numbers()}
        alike = [each for each in legal if each.casefold() == name.casefold()]
        return legal.get(alike[0] if len(alike) == 1 else name)

    def _legal_numbers(self) -> list[int]:
        ended = self._state.is_terminal() or self._state.current_player() != self._seat
        return [] if ended else list(self._state.legal_actions())

    def _name_of(self, number: int) -> str:
        if self._names is not None:
            return self._names[self._seat][number]
        return str(self._state.action_to_string(self._seat, number)).strip()

    def _seen(self) -> str:
        """Return what the seat sees of the position, without spaces at the ends of lines."""
        kind = _game(self.game).get_type()
        tells_history = kind.provides_information_state_string
        shows = kind.provides_observation_string
        if shows and (self.view == "observation" or not tells_history):
            text = self._state.observation_string(self._seat)
        elif tells_history:
            text = self._state.information_state_string(self._seat)
        else:
            text = str(self._state)
        return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))

    def render_text(self) -> str:
        """Return what the seat sees, what was illegal, and the legal actions."""
        lines = [self._seen()]
        if self._illegal is not None:
            lines.append(f"Not legal: {self._illegal}")
        legal = [self._name_of(number) for number in self._legal_numbers()]
        lines.append(f"Legal: {', '.join(legal)}" if legal else _ENDED)
        return "\n".join(lines)

    def get_state(self) -> dict[str, Any]:
        """Return OpenSpiel's serialized position, the seat, and what was last illegal."""
        return {
            "position": self._state.serialize(),
            "seat": self._seat,
            "num_actions": self._num_actions,
            "illegal": self._illegal,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned, except the noise generator, which stays as it is."""
        self._state = _game(self.game).deserialize_state(state["position"])
        self._seat, self._num_actions = state["seat"], state["num_actions"]
        self._illegal = state["illegal"]
        if self._names is not None:
            self.actions = self._names[self._seat]

    def anchor_key(self) -> str:
        """Return a key of the seat and what it sees."""
        return hash_without({"seat": self._seat, "text": self.render_text()})

    def start_key(self) -> str:
        """Return a key of the seat and what it sees; hidden cards do not make another task."""
        return self.anchor_key()

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the expert's move, without a thought: others move between any two."""
        return "", (self._name_of(self.expert.choose(self._state, rng)),)

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled games, which random moves reach."""
        yield from ("Legal: ", "Not legal: ", _ENDED)
        yield from self._pieces.of(self, _SAMPLED, _random_legal)


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"success_pattern: {pattern!r} is no regular expression: {error}"
        ) from error


def _random_legal(env: TextEnv, rng: random.Random) -> str:
    assert isinstance(env, OpenSpiel)
    return env._name_of(rng.choice(env._legal_numbers()))


@lru_cache(maxsize=32)
def _game(name: str) -> Any:
    """Load a game; all environments of this process share it.

    Raises:
        ConfigError: if OpenSpiel is not installed.
        ValueError: if it has no such game, or one that is not sequential.
    """
    pyspiel = load("pyspiel", "OpenSpiel")
    try:
        game = pyspiel.load_game(name)
    except RuntimeError as error:  # pyspiel.SpielError
        raise ValueError(f"game: {' '.join(str(error).split())[:200]} …") from error
    kind = game.get_type()
    if kind.dynamics.name != "SEQUENTIAL":
        raise ValueError(
            f"game: {name} is {kind.dynamics.name.lower()}; use turn_based_simultaneous_game(game="
            f"{name}), in which the seats choose one after the other"
        )
    return game


@lru_cache(maxsize=32)
def _action_names(name: str) -> Sequence[tuple[str, ...]] | None:
    """Return the names of all actions, by seat; None if the game has too many or no fixed ones."""
    game = _game(name)
    if game.num_distinct_actions() > _MOST_NAMED:
        return None
    rng, state = random.Random(0), game.new_initial_state()
    while state.is_chance_node():
        state.apply_action(advance_choice(state, RandomPlay(), rng))
    numbers = range(game.num_distinct_actions())
    try:
        seats = [
            tuple(str(state.action_to_string(seat, number)).strip() for number in numbers)
            for seat in range(game.num_players())
        ]
    except RuntimeError:  # pyspiel.SpielError: not every action has a name at every position
        return None
    fixed = all(map(_can_be_answered, seats)) and _names_hold(game, seats)
    return seats if fixed else None


def _names_hold(game: Any, seats: Sequence[tuple[str, ...]]) -> bool:
    """Return whether legal actions keep their names throughout a few games of random moves."""
    rng = random.Random(0)
    for _ in range(_NAMED_GAMES):
        state = game.new_initial_state()
        for _ in range(_NAMED_MOVES):
            if state.is_terminal():
                break
            if not state.is_chance_node():
                seat = state.current_player()
                for number in state.legal_actions():
                    if str(state.action_to_string(seat, number)).strip() != seats[seat][number]:
                        return False
            state.apply_action(advance_choice(state, RandomPlay(), rng))
    return True


def _can_be_answered(names: Sequence[str]) -> bool:
    """Return whether names differ and hold nothing that the answer format reserves."""
    differ = len({name.casefold() for name in names}) == len(names)
    return differ and not any("||" in name or "<" in name or not name for name in names)
