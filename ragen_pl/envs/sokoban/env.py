"""Sokoban: push every box onto a target; a push cannot be undone (RAGEN, arXiv 2504.20073)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from ragen_pl.envs.arrays import Features, planes
from ragen_pl.envs.base import (
    Symmetry,
    TextEnv,
    hash_without,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.boards import SquareSymmetry, cells_of, mask_of, square_symmetries
from ragen_pl.envs.picture import Drawing
from ragen_pl.envs.sokoban import text as words
from ragen_pl.envs.sokoban.paper_rooms import sample_reference_room
from ragen_pl.envs.sokoban.picture import draw_room
from ragen_pl.envs.sokoban.rooms import (
    Room,
    Split,
    canonical_key,
    difficulty_of_seed,
    outer_walls,
    sample_room,
)
from ragen_pl.envs.sokoban.search import (
    ACTIONS,
    Board,
    move,
    offsets,
    plan_progress,
    positions_after,
    shortest_plan,
)
from ragen_pl.envs.thoughts import StatementScore, compare, split_before

Observation = Literal["grid", "coordinates", "grid_coordinates"]
Thought = Literal["plan", "facts_and_plan", "facts_plan_and_prediction"]


class Sokoban(TextEnv):
    """Sokoban: push every box onto a target.

    Each action costs 0.1, even if it is blocked; a box pushed onto a target earns 1 and one pushed
    off costs 1; the push that puts the last box on a target earns 10 more (the paper's rewards).

    Args:
        size: Cells along one side, the frame included.
        num_boxes: Number of boxes, and of targets.
        symbols: ``paper`` for ``# _ O √ X P S``, ``letters`` for ``W . G C B A @``.
        observation: How a state is written in the prompt.
        spaced: Whether a space stands between the cells of a grid's row, so that a pretrained
            tokenizer has a token for each; it joins cells otherwise, and columns do not line up.
        split: ``train`` for rooms to learn from, ``tuning`` to choose settings by, ``eval`` for an
            evaluation set, ``reference`` for an evaluation set of the paper's own distribution of
            rooms (``ragen_pl.envs.sokoban.paper_rooms``). No other split has a layout (walls and
            targets) of a training or tuning room, or a state that can be reached from one.
        max_actions: Actions per trajectory.
        thought: Content of the expert's thought: the remaining moves (``plan``), the positions of
            player, boxes and targets and then the moves (``facts_and_plan``), or after these also
            the positions of player and boxes at the end of the turn
            (``facts_plan_and_prediction``; a random turn of a demonstration makes the prediction
            untrue). Each word adds noise to the credit assignment of an outcome reward, so the
            shortest is the default.
    """

    name = "sokoban"
    actions: tuple[str, ...] = ACTIONS

    def __init__(
        self,
        size: int = 6,
        num_boxes: int = 1,
        symbols: words.Vocabulary = "paper",
        observation: Observation = "grid",
        split: Split = "train",
        max_actions: int = 10,
        thought: Thought = "plan",
        spaced: bool = False,
    ) -> None:
        if not 6 <= size <= 10:
            raise ValueError(f"size: {size} is not between 6 and 10 (try 6 or 8)")
        if num_boxes not in (1, 2):
            raise ValueError(f"num_boxes: {num_boxes} is neither 1 nor 2")
        if max_actions <= 0:
            raise ValueError(f"max_actions: {max_actions} is not positive (the paper has 10)")
        self.size = size
        self.num_boxes = num_boxes
        self.symbols = words.SYMBOLS[one_of("symbols", symbols, words.Vocabulary)]
        self.observation: Observation = one_of("observation", observation, Observation)
        self.spaced = spaced
        self.split: Split = one_of("split", split, Split)
        self.max_actions = max_actions
        self.thought: Thought = one_of("thought", thought, Thought)
        self._board = Board(size, outer_walls(size), 0)
        self._player = 0
        self._boxes = 0
        self._num_actions = 0

    @property
    def instruction(self) -> str:
        """The task in words, with the legend of the symbols in use."""
        lines = [
            "Sokoban: push every box onto a target.",
            "Up, Down, Left and Right move the player by one cell; walking into a box pushes it.",
            "A box cannot be pulled, nor pushed into a wall or another box.",
        ]
        if self.observation != "grid":
            lines.append("Cells are (row,column), counted from (0,0) at the top left.")
        if self.observation != "coordinates":
            lines.append(f"Symbols: {words.legend(self.symbols)}.")
        return "\n".join(lines)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Enter the room that the seed decides; the noise seed has no effect on Sokoban."""
        room = self._sample_room(resolve_seed(self, seed))
        self._board, self._player, self._boxes = room.board, room.player, room.boxes
        self._num_actions = 0
        info = {"difficulty": room.difficulty, "optimal_length": room.optimal_length}
        return self.render_text(), info

    def _sample_room(self, seed: int) -> Room:
        if self.split == "reference":
            return sample_reference_room(seed, self.size, self.num_boxes)
        return sample_room(seed, self.size, self.num_boxes, self.split)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Move or push; a blocked action changes nothing and still counts."""
        refuse_after_end(self, self._has_ended)
        if action not in self.actions:
            raise ValueError(f"action: {action!r} is none of {', '.join(self.actions)}")
        before = (self._player, self._boxes)
        self._player, self._boxes = move(self._board, before, ACTIONS.index(action))
        self._num_actions += 1
        on_target = (self._boxes & self._board.targets).bit_count()
        reward = -0.1 + on_target - (before[1] & self._board.targets).bit_count()
        solved = self._is_solved
        if solved:
            reward += 10.0
        truncated = self._has_ended and not solved
        info = {"success": solved, "moved": before != (self._player, self._boxes)}
        return self.render_text(), reward, solved, truncated, info

    @property
    def _is_solved(self) -> bool:
        return self._boxes == self._board.targets

    @property
    def _has_ended(self) -> bool:
        return self._is_solved or self._num_actions >= self.max_actions

    def render_text(self) -> str:
        """Return the grid, the coordinates, or both."""
        position = (self._board, self._player, self._boxes)
        rows: list[str] = []
        if self.observation != "grid":
            inner_walls = self._board.walls & ~outer_walls(self.size)
            rows += words.coordinate_rows(*position, inner_walls)
        if self.observation != "coordinates":
            rows += words.grid_rows(*position, self.symbols, self.spaced)
        return "\n".join(rows)

    def get_state(self) -> dict[str, Any]:
        """Return the cells (numbered row by row) of walls, targets, boxes and player."""
        position = _position(self._board, self._player, self._boxes)
        return {**position, "num_actions": self._num_actions}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned."""
        if state["size"] != self.size:
            raise ValueError(f"size: the state has {state['size']}, this environment {self.size}")
        self._board = Board(self.size, mask_of(state["walls"]), mask_of(state["targets"]))
        self._player, self._boxes = state["player"], mask_of(state["boxes"])
        self._num_actions = state["num_actions"]

    def features(self) -> Features:
        """Return planes of walls, targets, boxes and the player."""
        board = self._board
        return planes((board.walls, board.targets, self._boxes, 1 << self._player), self.size)

    def anchor_key(self) -> str:
        """Return a key of the state without the number of actions so far."""
        return _anchor_key(self._board, self._player, self._boxes)

    def start_key(self) -> str:
        """Return a key of the room, equal for its rotations and reflections."""
        return canonical_key(self._board, self._player, self._boxes)[:16]

    def difficulty_of(self, seed: int) -> str:
        """Return the difficulty of a room, from the seed alone where the mix is fixed."""
        if self.split == "reference":
            return super().difficulty_of(seed)
        return difficulty_of_seed(seed)

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        """Draw a room."""
        return draw_room(state)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next moves of a shortest plan; the thought is the whole plan.

        In a room that can no longer be solved the thought is ``stuck``, and the move is random.
        """
        plan = shortest_plan(self._board, self._player, self._boxes)
        if plan is None:
            return self._turn((words.STUCK,), (rng.choice(self._effective_actions()),))
        return self._turn(plan, plan[:max_actions])

    @property
    def is_lost(self) -> bool:
        """Whether the room can no longer be solved."""
        return shortest_plan(self._board, self._player, self._boxes) is None

    def _turn(self, plan: tuple[str, ...], actions: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
        """Return the thought of a plan, or of ``stuck``, and the actions."""
        thought = (*self._facts(), *plan)
        if self._predicts:
            thought += (words.THEN, *self._prediction(actions))
        return " ".join(thought), actions

    def _facts(self) -> tuple[str, ...]:
        """Return the words before the plan of a thought."""
        if self.thought == "plan":
            return ()
        return words.facts(self._board, self._player, self._boxes, self.symbols)

    @property
    def _predicts(self) -> bool:
        return self.thought == "facts_plan_and_prediction"

    def _prediction(self, actions: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words about the position after some actions."""
        position = positions_after(self._board, (self._player, self._boxes), actions)[-1]
        return words.prediction(self._board, position, self.symbols)

    def _effective_actions(self) -> list[str]:
        position = (self._player, self._boxes)
        moves = [move(self._board, position, action) != position for action in range(4)]
        return [name for name, moved in zip(ACTIONS, moves, strict=True) if moved] or [*ACTIONS]

    def thought_correct(self, thought: str) -> bool:
        """Return whether a thought, in the expert's format, is true of the current state.

        Its coordinates, if it has any, must be the current ones and its plan must solve the room
        with its last move; ``stuck`` is true if no plan exists. A prediction must be a position on
        the plan's way, or one move away if the room is stuck; whether it is the one that the turn's
        actions lead to is judged by ``thought_grounding``.
        """
        if self._predicts:
            thought, _, predicted = thought.partition(f" {words.THEN} ")
            if tuple(predicted.split(" ")) not in self._possible_predictions(thought):
                return False
        plan = words.read_plan(thought, self._facts())
        if plan is None:
            return False
        if plan == (words.STUCK,):
            return shortest_plan(self._board, self._player, self._boxes) is None
        position = (self._player, self._boxes)
        for name in plan:
            if position[1] == self._board.targets:
                return False
            position = move(self._board, position, ACTIONS.index(name))
        return position[1] == self._board.targets

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the thought with the given plan, as the expert would write its own, and its next
        moves."""
        return self._turn(tuple(plan), tuple(plan[:max_actions]))

    def symmetries(self) -> tuple[Symmetry, ...]:
        """Return the eight rotations and reflections of the square."""
        return _symmetries(self.size)

    def _possible_predictions(self, thought: str) -> set[tuple[str, ...]]:
        """Return the predictions that may follow a thought's facts and plan."""
        plan = words.read_plan(thought, self._facts())
        if plan is None:
            return set()
        if plan == (words.STUCK,):
            return {self._prediction((name,)) for name in ACTIONS}
        way = positions_after(self._board, (self._player, self._boxes), plan)
        ahead = way[1:] or way
        return {words.prediction(self._board, each, self.symbols) for each in ahead}

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        """Return the share of a thought's statements that hold.

        Statements are the position of the player, of each box and of each target, the plan, and the
        predicted positions of player and boxes, as many of these as the expert states. Positions
        are compared place by place; a plan counts by ``search.plan_progress``, and ``stuck`` as
        true or not.
        """
        stated: Sequence[str] = thought.split(" ")
        predicted: Sequence[str] = ()
        if self._predicts:
            stated, predicted = split_before(stated, (words.THEN,))
        facts, plan = split_before(stated, (*ACTIONS, words.STUCK))
        score = compare(facts, self._facts()) + StatementScore(self._grade(plan), 1)
        if self._predicts:
            score += compare(predicted[1:], self._prediction(actions))
        return score.share

    def _grade(self, plan: Sequence[str]) -> float:
        position = (self._player, self._boxes)
        if tuple(plan) == (words.STUCK,):
            return float(shortest_plan(self._board, *position) is None)
        return plan_progress(self._board, position, plan)

    def vocabulary(self) -> Iterator[str]:
        """List grid rows, words of a thought and lines of the instruction."""
        for line in self.instruction.split("\n"):
            yield from (line + "\n", line)
        if self.observation != "coordinates":
            yield from words.row_pieces(self.size, self.num_boxes, self.symbols, self.spaced)
        if self.observation != "grid":
            yield from words.coordinate_pieces(self.size)
        yield from words.thought_pieces(self.size, self.symbols)
        if self._predicts:
            yield from words.prediction_pieces(self.size, self.symbols)


@lru_cache(maxsize=16)
def _symmetries(size: int) -> tuple[Symmetry, ...]:
    return tuple(_symmetry(size, each) for each in square_symmetries(size))


def _symmetry(size: int, square: SquareSymmetry) -> Symmetry:
    steps = offsets(size)
    actions = {
        name: ACTIONS[steps.index(square.offsets[step])]
        for name, step in zip(ACTIONS, steps, strict=True)
    }

    def image(state: Mapping[str, Any]) -> dict[str, Any]:
        sets = {
            key: sorted(square.cells[cell] for cell in state[key])
            for key in ("walls", "targets", "boxes")
        }
        return {**state, **sets, "player": square.cells[state["player"]]}

    return Symmetry(image, actions.__getitem__)


def _position(board: Board, player: int, boxes: int) -> dict[str, Any]:
    """Return a state without the number of actions."""
    return {
        "size": board.size,
        "walls": list(cells_of(board.walls)),
        "targets": list(cells_of(board.targets)),
        "boxes": list(cells_of(boxes)),
        "player": player,
    }


@lru_cache(maxsize=1 << 15)
def _anchor_key(board: Board, player: int, boxes: int) -> str:
    """Return the key of a position; the members of a group visit most of theirs again and again."""
    return hash_without(_position(board, player, boxes))
