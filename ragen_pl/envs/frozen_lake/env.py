"""FrozenLake: reach the goal over slippery ice without falling into a hole.

RAGEN (arXiv 2504.20073): random 4x4 maps, ``intended`` 1/3; RAGEN-2 uses 0.98.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from ragen_pl.envs.arrays import Features, planes
from ragen_pl.envs.base import (
    Symmetry,
    TextEnv,
    hash_without,
    noise_generator,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.boards import (
    RANDOM_NAMES,
    BoardSplit,
    SquareSymmetry,
    canonical_digest,
    cells_of,
    coordinate,
    marked_rows,
    mask_of,
    spaced_pieces,
    split_of_digest,
    square_symmetries,
)
from ragen_pl.envs.frozen_lake.picture import draw_lake
from ragen_pl.envs.frozen_lake.search import (
    ACTIONS,
    Lake,
    distances,
    intended_plan,
    neighbor,
    optimum,
    path_progress,
    reaches_goal,
    slip,
)
from ragen_pl.envs.picture import Drawing
from ragen_pl.envs.thoughts import StatementScore, compare, split_before

SYMBOLS = {
    "player": "P",
    "ice": "_",
    "hole": "O",
    "goal": "G",
    "player in a hole": "X",
    "player on the goal": "√",
}
STUCK = "stuck"
_PLAN = re.compile(rf"(?: (?:{'|'.join(ACTIONS)}))*")
_MAX_TRIES = 10_000
_LONGEST_ROW = 4


class _Start(NamedTuple):
    """An initial state: the map, the player's cell and its distance from the goal."""

    holes: int
    goal: int
    player: int
    distance: int


@lru_cache(maxsize=4096)
def _sample_start(
    seed: int, size: int, frozen_probability: float, split: BoardSplit, longest: int
) -> _Start:
    """Sample maps until one belongs to the split and has a path of at most ``longest`` moves.

    Raises:
        ValueError: if no such map is found.
    """
    rng = random.Random(f"frozen_lake {RANDOM_NAMES[split]} {size} {frozen_probability} {seed}")
    for _ in range(_MAX_TRIES):
        cells = range(size * size)
        player, goal = rng.sample(cells, 2)
        ends = (player, goal)
        holes = sum(1 << c for c in cells if rng.random() >= frozen_probability and c not in ends)
        if split_of_digest(layout_key(size, holes, goal)) != split:
            continue
        distance = distances(Lake(size, holes, goal, 1.0))[player]
        if distance is not None and distance <= longest:
            return _Start(holes, goal, player, distance)
    raise ValueError(
        f"frozen_probability: {frozen_probability} gave no {size}x{size} map of split {split!r}"
        f" with a path in {_MAX_TRIES} tries (the paper has 0.8, on 4x4 maps). Maps that are small"
        " or nearly without holes are few, and each belongs to one split; with many holes few"
        " have a path"
    )


def layout_key(size: int, holes: int, goal: int) -> str:
    """Return a key of the layout (holes and goal), equal for all symmetries of the square.

    It is the same in every process and after every move, and decides the split.
    """
    return canonical_digest(((holes >> c & 1) | (c == goal) << 1 for c in range(size**2)), size)


def _marks(size: int, holes: int, goal: int, player: int) -> list[int]:
    return [(holes >> c & 1) | (c == goal) << 1 | (c == player) << 2 for c in range(size * size)]


def _difficulty(distance: int) -> str:
    return "1-2" if distance <= 2 else "3-4" if distance <= 4 else "5+"


class FrozenLake(TextEnv):
    """FrozenLake: walk to the goal over slippery ice.

    A step goes in its direction with probability ``intended``, else to one of the two sides.
    Reaching the goal earns 1, everything else 0. The seed decides the map and ``noise_seed`` the
    slips, so that the members of a group slip independently.

    Args:
        size: Cells along one side.
        frozen_probability: Probability that a cell is frozen; the others are holes.
        intended: Probability that a step goes in its direction.
        split: ``train`` for maps to learn from, ``tuning`` to choose settings by, ``eval`` for an
            evaluation set; no two of them share a layout (holes and goal), and thus no state.
        max_actions: Maximum actions per trajectory; also the maximum distance between an initial
            state and its goal.
        spaced: Whether a space stands between the cells of a row, so that a pretrained tokenizer
            has a token for each; it joins cells otherwise, and columns do not line up.
    """

    name = "frozen_lake"
    actions: tuple[str, ...] = ACTIONS

    def __init__(
        self,
        size: int = 4,
        frozen_probability: float = 0.8,
        intended: float = 0.8,
        split: BoardSplit = "train",
        max_actions: int = 10,
        spaced: bool = False,
    ) -> None:
        if not 2 <= size <= 10:
            raise ValueError(f"size: {size} is not between 2 and 10 (the paper has 4)")
        if not 0.0 < frozen_probability <= 1.0:
            raise ValueError(f"frozen_probability: {frozen_probability} is not in (0, 1]")
        if not 0.0 <= intended <= 1.0:
            raise ValueError(f"intended: {intended} is not a probability (the paper has 1/3)")
        if max_actions <= 0:
            raise ValueError(f"max_actions: {max_actions} is not positive (the paper has 10)")
        self.size = size
        self.frozen_probability = frozen_probability
        self.intended = intended
        self.split = one_of("split", split, BoardSplit)
        self.max_actions = max_actions
        self.spaced = spaced
        self._lake = Lake(size, 0, 0, intended)
        self._player = 0
        self._num_actions = 0
        self._noise = noise_generator(self.name, 0, None)

    @property
    def instruction(self) -> str:
        """The task in words, with the legend and the slipperiness of this configuration."""
        legend = ", ".join(f"{mark} {meaning}" for meaning, mark in SYMBOLS.items())
        if self.intended < 1.0:
            ice = (
                "Ice is slippery: a step goes as meant with probability"
                f" {self.intended:.3g}, else to one of its two sides."
            )
        else:
            ice = "Nothing slips: every step goes as meant."
        return (
            f"FrozenLake: walk to the goal and do not fall into a hole.\n{ice}\nSymbols: {legend}."
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Enter the map that the seed decides."""
        seed = resolve_seed(self, seed)
        start = self._start_of(seed)
        self._lake = Lake(self.size, start.holes, start.goal, self.intended)
        self._player, self._num_actions = start.player, 0
        self._noise = noise_generator(self.name, seed, options)
        info = {"difficulty": _difficulty(start.distance), "optimal_length": start.distance}
        return self.render_text(), info

    def _start_of(self, seed: int) -> _Start:
        return _sample_start(seed, self.size, self.frozen_probability, self.split, self.max_actions)

    def difficulty_of(self, seed: int) -> str:
        """Return the difficulty of a map; the map is kept for the resets that follow."""
        return _difficulty(self._start_of(seed).distance)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step in a direction, or slip to one of its sides."""
        refuse_after_end(self, self._has_ended)
        if action not in self.actions:
            raise ValueError(f"action: {action!r} is none of {', '.join(self.actions)}")
        taken = slip(ACTIONS.index(action), self._noise.random(), self.intended)
        self._player = neighbor(self.size, self._player, taken)
        self._num_actions += 1
        success, terminated = self._player == self._lake.goal, self._is_final
        truncated = self._has_ended and not terminated
        info = {"success": success, "taken": ACTIONS[taken]}
        return self.render_text(), float(success), terminated, truncated, info

    @property
    def _in_hole(self) -> bool:
        return bool(self._lake.holes >> self._player & 1)

    @property
    def _is_final(self) -> bool:
        return self._player == self._lake.goal or self._in_hole

    @property
    def _has_ended(self) -> bool:
        return self._is_final or self._num_actions >= self.max_actions

    def render_text(self) -> str:
        """Return the grid."""
        marks = [SYMBOLS["ice"]] * self.size**2
        for cell in cells_of(self._lake.holes):
            marks[cell] = SYMBOLS["hole"]
        marks[self._lake.goal] = SYMBOLS["goal"]
        if self._player == self._lake.goal:
            marks[self._player] = SYMBOLS["player on the goal"]
        else:
            marks[self._player] = SYMBOLS["player in a hole" if self._in_hole else "player"]
        return "\n".join(marked_rows(marks, self.size, self.spaced))

    def get_state(self) -> dict[str, Any]:
        """Return the map, with cells numbered row by row, without the noise of later slips."""
        return {
            "size": self.size,
            "holes": list(cells_of(self._lake.holes)),
            "goal": self._lake.goal,
            "player": self._player,
            "num_actions": self._num_actions,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned, except the noise generator, which stays as it is."""
        self._lake = self._lake_of(state)
        self._player, self._num_actions = state["player"], state["num_actions"]

    def _lake_of(self, state: Mapping[str, Any]) -> Lake:
        if state["size"] != self.size:
            raise ValueError(f"size: the state has {state['size']}, this environment {self.size}")
        return Lake(self.size, mask_of(state["holes"]), state["goal"], self.intended)

    def features(self) -> Features:
        """Return planes of holes, the goal and the player."""
        return planes((self._lake.holes, 1 << self._lake.goal, 1 << self._player), self.size)

    def anchor_key(self) -> str:
        """Return a key of the state without the number of actions so far."""
        return hash_without(self.get_state(), "num_actions")

    def start_key(self) -> str:
        """Return a key of the board that is equal for its rotations and reflections.

        Slips are symmetric, so these are the same task.
        """
        marks = _marks(self.size, self._lake.holes, self._lake.goal, self._player)
        return canonical_digest(marks, self.size)[:16]

    def optimal_success(
        self,
        state: Mapping[str, Any],
        max_turns: int,
        max_actions_per_turn: int,
        max_actions: int | None = None,
    ) -> float:
        """Return the highest success probability from a state under the turn protocol.

        ``max_actions`` counts from this state; by default, it is the number of actions left there.
        """
        left = self.max_actions - state["num_actions"] if max_actions is None else max_actions
        return optimum(
            self._lake_of(state),
            state["player"],
            max_turns=max_turns,
            max_actions_per_turn=max_actions_per_turn,
            max_actions=left,
        )

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        """Draw a map."""
        return draw_lake(state)

    def _facts(self) -> str:
        places = (("player", self._player), ("goal", self._lake.goal))
        return " ".join(SYMBOLS[kind] + coordinate(cell, self.size) for kind, cell in places)

    def _plan(self) -> tuple[str, ...] | None:
        return intended_plan(self._lake, self._player, self.max_actions - self._num_actions)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next actions that the best policy for the actions left takes if nothing slips.

        If the goal is out of reach, the thought is ``stuck`` and the action is random.
        """
        plan = self._plan()
        if plan is None:
            return f"{self._facts()} {STUCK}", (rng.choice(ACTIONS),)
        return " ".join((self._facts(), *plan)), plan[:max_actions]

    @property
    def is_lost(self) -> bool:
        """Whether the goal is too far for the actions left."""
        return self._plan() is None

    def thought_correct(self, thought: str) -> bool:
        """Return whether a thought, in the expert's format, is true of the current state.

        Its positions must be the current ones and its path, if nothing slips, must end on the
        goal; ``stuck`` is true if the goal is too far for the actions left.
        """
        facts = self._facts()
        rest = thought[len(facts) :]
        if not thought.startswith(facts):
            return False
        if rest == f" {STUCK}":
            return self._plan() is None
        if not _PLAN.fullmatch(rest):
            return False
        return reaches_goal(self._lake, self._player, tuple(rest.split()))

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the thought with the given path, as the expert would write its own, and its next
        steps."""
        return " ".join((self._facts(), *plan)), tuple(plan[:max_actions])

    def symmetries(self) -> tuple[Symmetry, ...]:
        """Return the eight rotations and reflections of the square; slips go to both sides
        alike."""
        return _symmetries(self.size)

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        """Return the share of a thought's statements that hold: player, goal, and path.

        Positions are compared place by place; a path counts by ``search.path_progress``, and
        ``stuck`` as true or not.
        """
        facts, path = split_before(thought.split(" "), (*ACTIONS, STUCK))
        if tuple(path) == (STUCK,):
            grade = float(self._plan() is None)
        else:
            grade = path_progress(self._lake, self._player, path)
        return (compare(facts, self._facts().split(" ")) + StatementScore(grade, 1)).share

    def vocabulary(self) -> Iterator[str]:
        """List rows of the grid, words of a thought and lines of the instruction."""
        for line in self.instruction.split("\n"):
            yield from (line + "\n", line)
        if self.spaced:
            yield from spaced_pieces(tuple(SYMBOLS.values()))
        else:
            yield from _row_pieces(self.size)
        for row_index, column in product(range(self.size), repeat=2):
            yield f"{SYMBOLS['player']}({row_index},{column})"
            yield f" {SYMBOLS['goal']}({row_index},{column})"
        yield from (f" {word}" for word in (*ACTIONS, STUCK))


def _row_pieces(size: int) -> Iterator[str]:
    # Wider rows have too many forms and are written in stretches of three cells.
    for length in [size] if size <= _LONGEST_ROW else (3, 2, 1):
        for row in _legal_rows(length):
            yield from (row, row + "\n")


def _legal_rows(length: int) -> Iterator[str]:
    """List rows with at most one player and one goal."""
    for cells in product(SYMBOLS.values(), repeat=length):
        row = "".join(cells)
        if sum(row.count(mark) for mark in "PX√") <= 1 and row.count("G") + row.count("√") <= 1:
            yield row


@lru_cache(maxsize=16)
def _symmetries(size: int) -> tuple[Symmetry, ...]:
    return tuple(_symmetry(size, each) for each in square_symmetries(size))


def _symmetry(size: int, square: SquareSymmetry) -> Symmetry:
    steps = dict(zip(ACTIONS, (-1, size, 1, -size), strict=True))
    names = {step: name for name, step in steps.items()}
    actions = {name: names[square.offsets[step]] for name, step in steps.items()}

    def image(state: Mapping[str, Any]) -> dict[str, Any]:
        holes = sorted(square.cells[cell] for cell in state["holes"])
        places = {key: square.cells[state[key]] for key in ("goal", "player")}
        return {**state, **places, "holes": holes}

    return Symmetry(image, actions.__getitem__)
