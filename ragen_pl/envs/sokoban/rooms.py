"""Random Sokoban rooms with a fixed mix of difficulties and splits that share no layout."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Literal, NamedTuple

from ragen_pl.envs.boards import (
    RANDOM_NAMES,
    BoardSplit,
    canonical_digest,
    cells_of,
    split_of_digest,
)
from ragen_pl.envs.sokoban.search import Board, Position, fewest_pushes, starts_by_length

Split = Literal["train", "tuning", "eval", "reference"]

DIFFICULTIES = {"2-3": (2, 3), "4-5": (4, 5), "6-8": (6, 8), "9-10": (9, 10)}
"""Names and bounds of the difficulties by optimal length; no room needs more than ten moves."""
_DIFFICULTY_OF_SEED = ("2-3",) * 4 + ("4-5",) * 7 + ("6-8",) * 7 + ("9-10",) * 2
"""Difficulty by ``seed % 20``: exactly 20, 35, 35 and 10 % of any 20 consecutive seeds."""
_MAX_BOARDS = 20_000
_STARTS_PER_BOARD = 8


class Room(NamedTuple):
    """An initial state, with its difficulty."""

    board: Board
    player: int
    boxes: int
    difficulty: str
    optimal_length: int


def difficulty_of_seed(seed: int) -> str:
    """Return the difficulty that a seed gives."""
    return _DIFFICULTY_OF_SEED[seed % 20]


def difficulty_of_length(length: int) -> str:
    """Return the difficulty of an optimal length; ``0-1`` or ``11+`` if it is outside the mix."""
    for name, (shortest, longest) in DIFFICULTIES.items():
        if shortest <= length <= longest:
            return name
    return "11+" if length > 10 else "0-1"


def canonical_key(board: Board, player: int, boxes: int) -> str:
    """Return a key of a position, equal for all symmetries of the square and in every process."""
    marks = (
        (board.walls >> cell & 1)
        | (board.targets >> cell & 1) << 1
        | (boxes >> cell & 1) << 2
        | (cell == player) << 3
        for cell in range(board.size**2)
    )
    return canonical_digest(marks, board.size)


def layout_key(board: Board) -> str:
    """Return a key of the layout (walls and targets), equal for all symmetries of the square.

    It is the same in every process and after every move, and decides the split.
    """
    marks = (
        (board.walls >> cell & 1) | (board.targets >> cell & 1) << 1
        for cell in range(board.size**2)
    )
    return canonical_digest(marks, board.size)


def split_of_board(board: Board) -> BoardSplit:
    """Return the split that every room on a board belongs to."""
    return split_of_digest(layout_key(board))


def outer_walls(size: int) -> int:
    """Return the mask of the outermost cells, the frame."""
    edge = (0, size - 1)
    cells = range(size * size)
    return sum(1 << cell for cell in cells if cell // size in edge or cell % size in edge)


def most_walls(size: int) -> int:
    """Return the most walls that a board of the mix may have inside the frame."""
    return (size - 2) ** 2 // 4


def _random_board(rng: random.Random, size: int, num_boxes: int) -> Board:
    inside = list(cells_of(~outer_walls(size) & ((1 << size * size) - 1)))
    # The larger of two samples, since boards with few walls are few and would repeat.
    num_walls = max(rng.randint(0, most_walls(size)), rng.randint(0, most_walls(size)))
    cells = rng.sample(inside, num_walls + num_boxes)
    walls = sum(1 << cell for cell in cells[num_boxes:])
    targets = sum(1 << cell for cell in cells[:num_boxes])
    return Board(size, outer_walls(size) | walls, targets)


# Cached, since the members of a group reset to the same room one after another.
@lru_cache(maxsize=4096)
def sample_room(seed: int, size: int, num_boxes: int, split: BoardSplit) -> Room:
    """Return the room that a seed decides: of its difficulty, in the split, every box off target.

    In rooms that need four moves or more, every shortest plan has at least two pushes, since
    walking alone is no puzzle.

    Raises:
        ValueError: if no such room is found.
    """
    rng = random.Random(f"sokoban {RANDOM_NAMES[split]} {size} {num_boxes} {seed}")
    difficulty = difficulty_of_seed(seed)
    shortest, longest = DIFFICULTIES[difficulty]
    for _ in range(_MAX_BOARDS):
        board = _random_board(rng, size, num_boxes)
        if split_of_board(board) != split:
            continue
        starts = [
            (length, start)
            for length, layer in enumerate(starts_by_length(board, longest))
            for start in layer
            if length >= shortest and not start[1] & board.targets
        ]
        for length, start in rng.sample(starts, min(len(starts), _STARTS_PER_BOARD)):
            if length < 4 or _is_puzzle(board, start, length):
                return Room(board, *start, difficulty, length)
    raise ValueError(
        f"no {size}x{size} room with {num_boxes} boxes and a solution of {difficulty} moves was "
        f"found in {_MAX_BOARDS} boards of all splits: choose a larger size or fewer boxes"
    )


def _is_puzzle(board: Board, start: Position, length: int) -> bool:
    pushes = fewest_pushes(board, start, length)
    return pushes is not None and pushes >= 2
