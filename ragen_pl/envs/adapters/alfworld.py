"""``AlfWorld``: household tasks in words, of its own making or ALFRED's."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen_pl.envs.adapters.household import ALFRED_TASKS, TASKS, HouseholdGame, generate
from ragen_pl.envs.adapters.remembered import Remembered
from ragen_pl.envs.base import one_of
from ragen_pl.envs.packages import load
from ragen_pl.envs.pieces import SampledPieces
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split, enter_split

_INSTRUCTION = (
    "Do a task in a household by commands, such as: go to cabinet 1, open cabinet 1, "
    "take apple 1 from cabinet 1, move apple 1 to fridge 1, heat apple 1 with microwave 1, "
    "clean apple 1 with sinkbasin 1, cool apple 1 with fridge 1, look, inventory."
)
_HEADING = "-= Welcome to TextWorld, ALFRED! =-"
_NOTHING = "Nothing happens."
_USELESS = ("help",)
_SAMPLED = 5
"""Episodes that the vocabulary is taken from; each takes a second."""


class AlfWorld(ReplayState):
    """ALFWorld's household tasks: find an object, perhaps treat it, and bring it to its place.

    The seed decides the household and the task, and nothing is random after it. Commands are free
    text; what is not admissible changes nothing. Success earns ``win_reward`` and ends the episode.
    The expert is the planner.

    TextWorld takes a second to load a household and a tenth of one for a command, so what commands
    lead to is remembered for all environments of a process.

    Args:
        games: Folder of ALFRED's own games (``*.tw-pddl``, searched with its folders), or one such
            file; null makes households of its own, which need no data.
        tasks: Tasks of the households that are made, by ALFRED's names.
        clutter: Objects of such a household that the task does not need.
        admissible: Whether observations list the admissible commands.
        win_reward: Reward of a success (RAGEN-2 has 10).
        split: ``train`` or ``eval`` for disjoint households; ``all`` for folders that are divided
            already, as ALFRED's are.
        max_actions: Maximum actions per trajectory.
    """

    name = "alfworld"
    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        games: str | None = None,
        tasks: Sequence[str] = TASKS,
        clutter: int = 10,
        admissible: bool = True,
        win_reward: float = 10.0,
        split: Split = "train",
        max_actions: int = 50,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        if not 0 <= clutter <= 50:
            raise ValueError(f"clutter: {clutter} is not between 0 and 50")
        unknown = [task for task in tasks if task not in TASKS]
        if unknown or not tasks:
            raise ValueError(f"tasks: {list(tasks)} must be some of {', '.join(TASKS)}")
        load("textworld.envs.pddl", "AlfWorld", "alfworld")
        load("alfworld", "AlfWorld", "alfworld")
        self._files = () if games is None else _game_files(games)
        self.tasks, self.clutter = tuple(tasks), clutter
        self.admissible, self.win_reward = admissible, win_reward
        self.split, self.max_actions = one_of("split", split, Split), max_actions
        self._game: HouseholdGame | None = None
        self._commands: tuple[str, ...] = ()
        """The moves that did something."""
        self._seen = _Seen("", (), won=False)
        self._text = ""
        self._engine: _Engine | None = None
        self._plan: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        """The commands after which it was made, and the plan."""
        self._pieces = SampledPieces()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    @property
    def instruction(self) -> str:
        """How to give commands, and the task."""
        return _INSTRUCTION if self._game is None else f"{_INSTRUCTION}\nTask: {self._game.goal}"

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Enter the household that the seed decides."""
        enter_split(seed, self.split, self._choose)
        assert self._game is not None
        self._commands, self._plan = (), None
        self._seen = self._look()
        self._text = self._shown(self._seen.feedback)
        return {"difficulty": self._game.task}

    def _choose(self, seed: int) -> str:
        """Choose a household; return a key of it."""
        if self._files:
            self._game = _read_game(random.Random(f"alfworld {seed}").choice(self._files))
        else:
            self._game = _generated(seed, self.tasks, self.clutter)
        return self._game.key

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Give a command."""
        command = " ".join(action.split()).lower()
        if command not in self._seen.admissible:
            self._text = self._shown(_NOTHING)
            return 0.0, False, False, {"success": False}
        self._commands = (*self._commands, command)
        self._seen = self._look()
        self._text = self._shown(self._seen.feedback)
        won = self._seen.won
        return self.win_reward if won else 0.0, won, False, {"success": won}

    def _look(self) -> _Seen:
        """Return what the commands so far have led to."""
        assert self._game is not None
        game, commands = self._game, self._commands
        place = game.key, commands
        return _REMEMBERED.get(place, lambda: self._own_engine().at(game, commands))

    def _own_engine(self) -> _Engine:
        if self._engine is None:
            self._engine = _Engine()
        return self._engine

    def _shown(self, feedback: str) -> str:
        text = feedback.replace(_HEADING, "").strip()
        listed = f"\nAdmissible: {', '.join(self._seen.admissible)}" if self.admissible else ""
        return f"{text}{listed}"

    def render_text(self) -> str:
        """Return what the last command led to."""
        return self._text

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next commands of the planner's plan, without a thought.

        A plan is made once and followed while the moves do.
        """
        assert self._game is not None
        rest = self._rest_of_plan()
        if not rest:
            rest = self._own_engine().plan(self._game, self._commands)
            self._plan = self._commands, rest
        if not rest:
            raise ValueError("the planner finds no plan: the task cannot be done any more")
        return "", rest[:max_actions]

    def _rest_of_plan(self) -> tuple[str, ...]:
        if self._plan is None:
            return ()
        made_after, plan = self._plan
        since = self._commands[len(made_after) :]
        follows = self._commands[: len(made_after)] == made_after and since == plan[: len(since)]
        return plan[len(since) :] if follows else ()

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled first observations."""
        yield from self._pieces.of(self, _SAMPLED)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What commands lead to."""

    feedback: str
    admissible: tuple[str, ...]
    """The commands that do something, sorted."""
    won: bool


_REMEMBERED: Remembered[_Seen] = Remembered(8192)
"""What is seen, by household and commands."""


class _Engine:
    """TextWorld's engine, in one household at a time."""

    def __init__(self) -> None:
        textworld = load("textworld", "AlfWorld", "alfworld")
        engine = load("textworld.envs.pddl", "AlfWorld", "alfworld").PddlEnv
        names = load("alfworld.agents.environment.alfred_tw_env", "AlfWorld", "alfworld")
        with _working():
            self._planner = engine(textworld.EnvInfos(won=True, admissible_commands=True))
            self._env = names.AlfredDemangler(self._planner, shuffle=False)
        self._loaded = ""
        self._commands: tuple[str, ...] = ()
        self._state: Any = None

    def at(self, game: HouseholdGame, commands: tuple[str, ...]) -> _Seen:
        """Return what admissible commands lead to in a household."""
        with _working():
            self._go(game, commands)
        listed = (each for each in self._state.admissible_commands if each not in _USELESS)
        return _Seen(str(self._state.feedback), tuple(listed), bool(self._state.won))

    def _go(self, game: HouseholdGame, commands: tuple[str, ...]) -> None:
        """Go to where commands lead: on from here if they begin with those given, else anew."""
        goes_on = self._loaded == game.key and commands[: len(self._commands)] == self._commands
        if not goes_on:
            if self._loaded != game.key:
                self._env.load(game.data)
                self._loaded = game.key
            self._state, self._commands = self._env.reset(), ()
        for command in commands[len(self._commands) :]:
            self._state, _, _ = self._env.step(command)
            self._commands = (*self._commands, command)

    def plan(self, game: HouseholdGame, commands: tuple[str, ...]) -> tuple[str, ...]:
        """Return the planner's commands from there to success; empty if it finds none.

        TextWorld gives plans only with every step, which makes each of them slower; the planner is
        therefore asked directly.
        """
        with _working():
            self._go(game, commands)
            return tuple(self._planner._pddl_state.replan(self._planner._entity_infos))


@contextmanager
def _working() -> Iterator[None]:
    """Let TextWorld work alone, since its parsers and planner are not made for threads, and undo
    what it does to the process: its planner's translator writes into ``sys.argv``."""
    with _REMEMBERED.turn:
        arguments = list(sys.argv)
        try:
            yield
        finally:
            sys.argv = arguments


@lru_cache(maxsize=256)
def _generated(seed: int, tasks: tuple[str, ...], clutter: int) -> HouseholdGame:
    """Make the household of a seed, which all members of a group share."""
    return generate(seed, tasks, clutter)


def _game_files(games: str) -> tuple[str, ...]:
    """List the games of a folder.

    Raises:
        ValueError: if there are none.
    """
    place = Path(games).expanduser()
    found = [place] if place.is_file() else sorted(place.rglob("*.tw-pddl"))
    if not found:
        raise ValueError(
            f"games: there is no *.tw-pddl in {games}: give ALFRED's folder (alfworld-download "
            "fetches it), or null for households of its own"
        )
    return tuple(map(str, found))


@lru_cache(maxsize=256)
def _read_game(file: str) -> HouseholdGame:
    """Read one of ALFRED's games.

    Raises:
        ValueError: if it is none, or cannot be solved.
    """
    wanted = ("pddl_domain", "pddl_problem", "grammar")
    try:
        data = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"games: {file} is not JSON: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(data.get(k), str) for k in wanted):
        raise ValueError(f"games: {file} must hold texts named {', '.join(wanted)}")
    if data.get("solvable") is False:
        raise ValueError(f"games: {file} says that it cannot be solved: remove it")
    folders = (part.partition("-")[0] for part in Path(file).parts)  # ALFRED's: task-object-…
    task = next((name for name in folders if name in ALFRED_TASKS), "")
    return HouseholdGame(task, _goal_in(data["grammar"]), data)


def _goal_in(grammar: str) -> str:
    """Return the task in words, as the first text of a game tells it."""
    told = grammar.partition("Your task is to: ")[2]
    return told.partition('"')[0].partition("\\n")[0].strip().removesuffix(".")
