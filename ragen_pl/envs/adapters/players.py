"""Players of OpenSpiel's games, as opponents and as experts."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ragen_pl.envs.packages import load

_MOST_POSITIONS = 50_000
"""Positions that an exact search may visit; more would take minutes and gigabytes."""
_LONGEST_EXACT = 60
"""Moves of the longest game that is searched exactly, far below Python's recursion limit."""
_MEGABYTES = 20
_TIE = 1e-9


class Player(ABC):
    """A way to choose moves, for any seat of a game."""

    @abstractmethod
    def check(self, game: Any) -> None:
        """Refuse a game that this player cannot play.

        Raises:
            ValueError: if it cannot; the message says which player can.
        """

    @abstractmethod
    def choose(self, state: Any, rng: random.Random) -> int:
        """Choose a legal action of the seat whose turn it is; ``rng`` decides everything random."""


@dataclass(frozen=True)
class RandomPlay(Player):
    """A player of uniformly random legal moves."""

    def check(self, game: Any) -> None:
        """Accept every game."""

    def choose(self, state: Any, rng: random.Random) -> int:
        """Choose any legal action."""
        return int(rng.choice(state.legal_actions()))


@dataclass(frozen=True)
class Minimax(Player):
    """A perfect player of small games: exact search to the end, over chance by expectation.

    It plays games of one player, and zero-sum games of two, without hidden information. Positions
    are searched once per process. Equally good moves are chosen among at random.
    """

    def check(self, game: Any) -> None:
        """Refuse pay on the way, hidden information, more than two players and long games."""
        _check_paid_at_end("Minimax", game)  # else a position's value would need its past
        kind = game.get_type()
        hidden = kind.information.name != "PERFECT_INFORMATION"
        if hidden or game.num_players() > 2 or game.max_game_length() > _LONGEST_EXACT:
            raise ValueError(
                f"Minimax searches games to their end, and {kind.short_name} hides information, "
                f"has more than two players or more than {_LONGEST_EXACT} moves: use MCTS or "
                "MonteCarlo"
            )

    def choose(self, state: Any, rng: random.Random) -> int:
        """Choose one of the best actions."""
        return int(rng.choice(_search(str(state.get_game())).best_actions(state)))


class _Search:
    """The values of a game's positions, for the first seat."""

    def __init__(self, game: str) -> None:
        self.game = game
        self._values: dict[tuple[int, str], float] = {}

    def best_actions(self, state: Any) -> list[int]:
        """List the legal actions of the highest value for the seat whose turn it is."""
        sign = _sign(state.current_player())
        values = {action: sign * self._value(state.child(action)) for action in _legal(state)}
        best = max(values.values())
        return [action for action, value in values.items() if value >= best - _TIE]

    def _value(self, state: Any) -> float:
        if state.is_terminal():
            return float(state.returns()[0])
        key = (state.current_player(), str(state))
        if key not in self._values:
            if len(self._values) >= _MOST_POSITIONS:
                raise ValueError(
                    f"Minimax: {self.game} has more than {_MOST_POSITIONS} positions: use MCTS or "
                    "MonteCarlo, or a smaller board"
                )
            self._values[key] = self._search(state)
        return self._values[key]

    def _search(self, state: Any) -> float:
        if state.is_chance_node():
            outcomes = state.chance_outcomes()
            return sum(float(p) * self._value(state.child(each)) for each, p in outcomes)
        sign = _sign(state.current_player())
        return sign * max(sign * self._value(state.child(action)) for action in _legal(state))


@lru_cache(maxsize=8)
def _search(game: str) -> _Search:
    """Return the search of a game, which all environments of this process share."""
    return _Search(game)


def _sign(seat: int) -> int:
    return 1 if seat == 0 else -1


def _legal(state: Any) -> Iterator[int]:
    yield from state.legal_actions()


@dataclass(frozen=True)
class MCTS(Player):
    """OpenSpiel's Monte Carlo tree search.

    Where information is hidden, it searches in several states that the seat cannot tell apart from
    the true one, and takes the move that most of them want; it does not look at hidden cards.
    (OpenSpiel's own search for such games, IS-MCTS, does not repeat itself with equal seeds.)

    Args:
        simulations: Simulated games per move.
        worlds: States to divide them among, where information is hidden.
    """

    simulations: int = 100
    worlds: int = 10

    def __post_init__(self) -> None:
        for key in ("simulations", "worlds"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not positive")

    def check(self, game: Any) -> None:
        """Refuse games that pay before their end, and hidden information that cannot be guessed."""
        _check_paid_at_end("MCTS", game)
        _check_hidden("MCTS", game)

    def choose(self, state: Any, rng: random.Random) -> int:
        """Choose the most visited action, or the one that most worlds want."""
        if state.get_game().get_type().information.name == "PERFECT_INFORMATION":
            return self._search(state, self.simulations, rng)
        seat, each = state.current_player(), max(1, self.simulations // self.worlds)
        worlds = (state.resample_from_infostate(seat, rng.random) for _ in range(self.worlds))
        votes = Counter(self._search(world, each, rng) for world in worlds)
        return max(sorted(votes), key=votes.__getitem__)

    def _search(self, state: Any, simulations: int, rng: random.Random) -> int:
        pyspiel, game = load("pyspiel", "MCTS"), state.get_game()
        evaluator = pyspiel.RandomRolloutEvaluator(1, rng.randrange(2**31))
        seed, solve, verbose = rng.randrange(2**31), True, False
        bot = pyspiel.MCTSBot(
            game, evaluator, _width(game), simulations, _MEGABYTES, solve, seed, verbose
        )
        return int(bot.step(state))


@dataclass(frozen=True)
class MonteCarlo(Player):
    """Flat Monte Carlo: the move after which random play goes best, for games of any kind.

    Where information is hidden, each playout begins from a state that the seat cannot tell apart
    from the true one.

    Args:
        playouts: Random playouts per legal move.
        depth: Moves of a playout, after which what was earned so far counts.
    """

    playouts: int = 10
    depth: int = 30

    def __post_init__(self) -> None:
        for key in ("playouts", "depth"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not positive")

    def check(self, game: Any) -> None:
        """Refuse hidden information that cannot be guessed."""
        _check_hidden("MonteCarlo", game)

    def choose(self, state: Any, rng: random.Random) -> int:
        """Choose the action with the highest mean return; the first of equal ones."""
        seat, legal = state.current_player(), state.legal_actions()
        totals = dict.fromkeys(legal, 0.0)
        hidden = state.get_game().get_type().information.name != "PERFECT_INFORMATION"
        for _ in range(self.playouts):
            root = state.resample_from_infostate(seat, rng.random) if hidden else state
            for action in legal:
                totals[action] += self._playout(root.child(action), seat, rng)
        return int(max(legal, key=totals.__getitem__))

    def _playout(self, state: Any, seat: int, rng: random.Random) -> float:
        for _ in range(self.depth):
            if state.is_terminal():
                break
            state.apply_action(advance_choice(state, RandomPlay(), rng))
        return float(state.returns()[seat])


def advance_choice(state: Any, player: Player, rng: random.Random) -> int:
    """Return the outcome of chance, or the player's move at any other node."""
    if not state.is_chance_node():
        return player.choose(state, rng)
    outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
    return int(rng.choices(outcomes, probabilities)[0])


def _width(game: Any) -> float:
    """Return the exploration constant of UCT: the range of returns, 2 for wins and losses."""
    return float(game.max_utility() - game.min_utility())


def _check_paid_at_end(player: str, game: Any) -> None:
    """Refuse a game that pays before its end.

    Raises:
        ValueError: if it does; the message says what can play it.
    """
    kind = game.get_type()
    if kind.reward_model.name != "TERMINAL":
        raise ValueError(
            f"{player} plays games that pay at their end, and {kind.short_name} pays on the way: "
            "use MonteCarlo"
        )


def _check_hidden(player: str, game: Any) -> None:
    """Refuse a game whose hidden information OpenSpiel cannot sample.

    Raises:
        ValueError: if it cannot; the message says what can play it.
    """
    kind = game.get_type()
    if kind.information.name == "PERFECT_INFORMATION":
        return
    rng, state = random.Random(0), game.new_initial_state()
    while state.is_chance_node():
        state.apply_action(advance_choice(state, RandomPlay(), rng))
    try:
        state.resample_from_infostate(state.current_player(), rng.random)
    except RuntimeError as error:  # pyspiel.SpielError
        raise ValueError(
            f"{player} cannot play {kind.short_name}: OpenSpiel does not sample what is hidden in "
            "it; use RandomPlay"
        ) from error
