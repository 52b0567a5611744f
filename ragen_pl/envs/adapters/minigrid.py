"""``MiniGrid``: levels of MiniGrid and BabyAI in words, with BabyAI's bot as the expert."""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import signature
from itertools import product
from typing import Any, Literal

import gymnasium
import numpy as np

from ragen_pl.envs.arrays import Features, one_hot
from ragen_pl.envs.base import hash_without, one_of
from ragen_pl.envs.packages import load
from ragen_pl.envs.pieces import SampledPieces
from ragen_pl.envs.replay import ReplayState
from ragen_pl.envs.splits import Split, enter_split
from ragen_pl.errors import ConfigError

View = Literal["objects", "grid"]

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")
"""In the order of MiniGrid's numbers."""
_KINDS = (
    "unseen",
    "empty",
    "wall",
    "floor",
    "door",
    "key",
    "ball",
    "box",
    "goal",
    "lava",
    "agent",
)
"""Names of MiniGrid's object numbers."""
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_DOORS = ("open", "closed", "locked")
_MARKS = {"unseen": "??", "empty": "..", "floor": "..", "wall": "##", "lava": "~~", "agent": "^^"}
_LETTERS = {"key": "k", "ball": "o", "box": "b", "goal": "G"}
_DOOR_LETTERS = ("_", "d", "D")
_COLOR_LETTERS = ("r", "g", "b", "p", "y", "e")
_LEGEND = (
    "Your view, you look up: ^^ you, ## wall, .. free, ?? unseen, ~~ lava; the others are a color "
    "(r g b p y, e grey) and a kind (k key, o ball, b box, G goal, _ open, d closed, D locked door)"
)
_BOTS = "minigrid.utils.baby_ai_bot"
_SAMPLED = 60
"""Episodes that the vocabulary is taken from."""


class MiniGrid(ReplayState):
    """A level of MiniGrid or BabyAI, seen through the agent's eyes and told in words.

    The seed decides the level; ``noise_seed`` decides what moves later, such as obstacles. The
    reward is the level's own: 1 − 0.9 × steps / ``max_actions`` for success, else 0 (−1 for
    running into an obstacle).

    Args:
        level: Gymnasium's name of the level, such as ``BabyAI-GoToLocal-v0``. Levels of BabyAI
            have an expert, their bot; levels of MiniGrid have none.
        view: ``objects`` lists what is in view with its place; ``grid`` draws the view with two
            letters a cell.
        split: ``train`` or ``eval`` for disjoint initial states, by all cells, mission and place;
            ``all`` for levels with too few.
        max_actions: Maximum actions per trajectory.

    Raises:
        ConfigError: if a package is missing.
    """

    actions: tuple[str, ...] = ACTIONS

    def __init__(
        self,
        level: str = "BabyAI-GoToLocal-v0",
        view: View = "objects",
        split: Split = "train",
        max_actions: int = 32,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        _check_level(level)
        self.level, self.max_actions = level, max_actions
        self.name = level.split("-")[0].lower()
        self.view = one_of("view", view, View)
        self.split = one_of("split", split, Split)
        self._env: Any = _make(level, max_actions)
        self._image: Any = None
        self._bot: Any = None
        """BabyAI's bot, which sees each step once ``expert_turn`` has been called."""
        self._advice: int | None = None
        """The bot's next action; None if it gave up."""
        self._pieces = SampledPieces()
        with _needing_packages(level):  # some levels load theirs at the first reset
            self._build(0)

    @property
    def instruction(self) -> str:
        """What the actions do, and the legend of the view."""
        text = (
            "Do what the mission says. forward moves to the free cell ahead, left and right turn; "
            "pickup, drop and toggle act on the cell ahead, toggle opens doors and boxes."
        )
        return text if self.view == "objects" else f"{text}\n{_LEGEND}."

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Build the level that the seed decides."""
        enter_split(seed, self.split, self._build)
        self._env.np_random = np.random.default_rng([seed, noise_seed])
        instruction = getattr(self._env, "instrs", None)
        kind = "" if instruction is None else type(instruction).__name__.removesuffix("Instr")
        return {"difficulty": kind}

    def _build(self, seed: int) -> str:
        _silence_rejections()  # here, as an environment that was unpickled has not been made here
        seen, _ = self._env.reset(seed=seed)
        self._image, self._bot = seen["image"], None
        return self._place()

    def _place(self) -> str:
        """Return a key of all that is in the level, seen or not."""
        env = self._env
        carried = None if env.carrying is None else (env.carrying.type, env.carrying.color)
        place = (env.mission, tuple(map(int, env.agent_pos)), int(env.agent_dir), carried)
        digest = hashlib.sha256(repr(place).encode())
        digest.update(env.grid.encode().tobytes())
        return digest.hexdigest()[:16]

    def play(self, action: str) -> tuple[float, bool, bool, dict[str, Any]]:
        """Take one of MiniGrid's actions."""
        if action not in ACTIONS:
            raise ValueError(f"action: {action!r} is none of {', '.join(ACTIONS)}")
        number = ACTIONS.index(action)
        seen, reward, terminated, truncated, _ = self._env.step(number)
        self._image = seen["image"]
        if self._bot is not None and self._advice is not None and not terminated:
            self._advice = _advice(self._bot, number)
        success = bool(terminated) and reward > 0
        return float(reward), bool(terminated), bool(truncated), {"success": success}

    def render_text(self) -> str:
        """Return the mission, the view, and what is carried."""
        carried = self._env.carrying
        held = "nothing" if carried is None else f"a {carried.color} {carried.type}"
        seen = _listed(self._image) if self.view == "objects" else _drawn(self._image)
        return f"Mission: {self._env.mission}\n{seen}\nYou carry {held}"

    def render(self) -> Any:
        """Render the whole level as MiniGrid does; the agent's view is lit."""
        return self._env.get_frame(tile_size=32)

    def anchor_key(self) -> str:
        """Return a key of all that is in the level, seen or not."""
        return hash_without({"level": self.level, "place": self._place()})

    @property
    def has_features(self) -> bool:
        """Whether the mission is always the same: it is text, of which features tell nothing."""
        mission = self._env.observation_space["mission"].mission_func
        return not hasattr(self._env, "instrs") and not signature(mission).parameters

    def features(self) -> Features:
        """Return what the text shows: kind, color and door state of every cell of the view that it
        names, and of what is carried.

        Raises:
            ValueError: if the mission differs from start to start.
        """
        if not self.has_features:
            raise ValueError(
                f"{self.level} has missions that differ, which features cannot tell: take a level "
                "with one mission, or a teacher that reads text"
            )
        cells = _told(self._image, self.view).reshape(-1, 3)
        carried = self._env.carrying
        held = (0, 0, 0) if carried is None else carried.encode()
        kinds, colors, states = np.vstack([cells, held]).T.tolist()
        sizes = (len(_KINDS), len(_COLORS), len(_DOORS))
        parts = (kinds, colors, states)
        found = [one_hot(part, size) for part, size in zip(parts, sizes, strict=True)]
        return np.hstack(found)

    @property
    def has_expert(self) -> bool:
        """Whether the level is one of BabyAI's, for which there is a bot."""
        return hasattr(self._env, "instrs")

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next actions of BabyAI's bot, which knows only what the agent has seen.

        Raises:
            ValueError: if the level is none of BabyAI's.
        """
        if not self.has_expert:
            raise ValueError(
                f"{self.level} has no expert, only levels of BabyAI have: set "
                "data.warm_start.iterations to 0"
            )
        if self._bot is None:
            self._follow()
        if self._advice is None:
            raise ValueError("BabyAI's bot gave up: an earlier action led to where it knows no way")
        env, bot = copy.deepcopy((self._env, self._bot))
        advice: int | None = self._advice
        actions: list[str] = []
        while advice is not None and len(actions) < max_actions:
            actions.append(ACTIONS[advice])
            _, _, terminated, truncated, _ = env.step(advice)
            if terminated or truncated:
                break
            advice = _advice(bot, advice)
        return "", tuple(actions)

    def _follow(self) -> None:
        """Let a bot see the episode from its beginning, so that it knows what the agent knows."""
        moves = self.moves
        self._begin(self._seed, self._noise_seed)
        self._bot = load(_BOTS, "MiniGrid").BabyAIBot(self._env)
        self._advice = _advice(self._bot, None)
        for move in moves:
            self.step(move)

    def vocabulary(self) -> Iterator[str]:
        """List the words of the view, and of sampled missions."""
        yield from ("Mission: ", "\nYou carry ", "You see ", "nothing", ", ")
        if self.view == "objects":
            yield from _words()
        else:
            yield from _cells()
        yield from self._pieces.of(self, _SAMPLED)


def _advice(bot: Any, taken: int | None) -> int | None:
    """Return the bot's next action after one that was taken; None if the bot gives up."""
    lost = load(_BOTS, "MiniGrid").DisappearedBoxError
    try:
        return int(bot.replan(taken))
    except (lost, AssertionError):  # it asserts what holds on its own way only
        return None


def _told(image: Any, view: View) -> Any:
    """Return what a view tells of an image (column, row, 3); all else is as if unseen.

    No view tells the agent's own cell, and both give walls, lava and floors no color. A list names
    the nearest walls alone, and no free cells.
    """
    columns, rows, _ = image.shape
    told, kinds = image.copy(), image[..., 0]
    told[kinds == _KINDS.index("floor"), 0] = _KINDS.index("empty")
    told[np.isin(kinds, [_KINDS.index(kind) for kind in _MARKS]), 1:] = 0
    told[columns // 2, rows - 1] = 0
    if view == "objects":
        told[told[..., 0] == _KINDS.index("empty")] = 0
        for column, row in np.argwhere(kinds == _KINDS.index("wall")):
            if not _is_nearest_wall(image, column, row):
                told[column, row] = 0
    return told


def _listed(image: Any) -> str:
    """List what is in view with its place, the nearest first, and the nearest walls."""
    columns, rows, _ = image.shape
    found: list[tuple[int, str]] = []
    told = _told(image, "objects")
    for column, row in np.argwhere(told[..., 0]).tolist():
        ahead, right = rows - 1 - row, column - columns // 2
        kind, color, state = told[column, row].tolist()
        name = _name(_KINDS[kind], color, state)
        found.append((ahead + abs(right), f"{name}{_where(ahead, right)}"))
    listed = ", ".join(text for _, text in sorted(found))
    return f"You see {listed or 'nothing'}"


def _is_nearest_wall(image: Any, column: int, row: int) -> bool:
    """Return whether a wall is the first thing straight ahead, or to the left or the right."""
    columns, rows, _ = image.shape
    middle, own = columns // 2, rows - 1
    if column == middle:
        between = image[column, row + 1 : own, 0]
    elif row == own:
        low, high = sorted((column, middle))
        between = image[low + 1 : high, row, 0]
    else:
        return False
    return not np.any(between == _KINDS.index("wall"))


def _name(kind: str, color: int, state: int) -> str:
    if kind in ("wall", "lava"):
        return kind
    if kind == "door":
        return f"{_DOORS[state]} {_COLORS[color]} door"
    return f"{_COLORS[color]} {kind}"


def _where(ahead: int, right: int) -> str:
    """Say where something is, such as `` 2 ahead 1 left``."""
    parts = [f" {ahead} ahead"] if ahead else []
    if right:
        parts.append(f" {abs(right)} {'right' if right > 0 else 'left'}")
    return "".join(parts)


def _words() -> Iterator[str]:
    yield from ("wall", "lava")
    yield from (f"{color} {kind}" for color, kind in product(_COLORS, _LETTERS))
    yield from (f"a {color} {kind}" for color, kind in product(_COLORS, _LETTERS))
    yield from (f"{state} {color} door" for state, color in product(_DOORS, _COLORS))
    yield from (f" {n} {side}" for n in range(1, 8) for side in ("ahead", "left", "right"))


def _drawn(image: Any) -> str:
    """Draw the view, two letters a cell; the agent is in the middle of the last row."""
    columns, rows, _ = image.shape
    cells = [[_cell(*map(int, image[c, r])) for c in range(columns)] for r in range(rows)]
    cells[rows - 1][columns // 2] = _MARKS["agent"]
    return "\n".join(" ".join(row) for row in cells)


def _cell(number: int, color: int, state: int) -> str:
    kind = _KINDS[number]
    if kind in _MARKS:
        return _MARKS[kind]
    letter = _DOOR_LETTERS[state] if kind == "door" else _LETTERS[kind]
    return _COLOR_LETTERS[color] + letter


def _cells() -> Iterator[str]:
    letters = (*_LETTERS.values(), *_DOOR_LETTERS)
    colored = [color + letter for color, letter in product(_COLOR_LETTERS, letters)]
    for cell in (*dict.fromkeys(_MARKS.values()), *colored):
        yield from (cell, f" {cell}")


def _check_level(level: str) -> None:
    """Refuse unknown levels.

    Raises:
        ConfigError: if MiniGrid is not installed.
        ValueError: if it has no such level.
    """
    load("minigrid", "MiniGrid")
    known = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    if level not in known:
        nearest = get_close_matches(level, known, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(f"level: {level!r} is unknown; {hint}there are {len(known)}")


def _make(level: str, max_actions: int) -> Any:
    """Make a level that is known.

    Raises:
        ConfigError: if it needs further packages.
    """
    with _needing_packages(level):
        made = gymnasium.make(level, max_steps=max_actions, disable_env_checker=True)
    return made.unwrapped


@contextmanager
def _needing_packages(level: str) -> Iterator[None]:
    """Tell by a ConfigError which package a level lacks."""
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(f"level: {level!r} needs what is not installed: {error}") from error


def _silence_rejections() -> None:
    """Keep BabyAI in this process from printing every rejected sample of a mission.

    Its module gets a ``print`` of its own; the output of other threads must not be redirected.
    """
    vars(load("minigrid.envs.babyai.core.roomgrid_level", "MiniGrid"))["print"] = _say_nothing


def _say_nothing(*texts: object) -> None:
    """Take the place of ``print``."""
