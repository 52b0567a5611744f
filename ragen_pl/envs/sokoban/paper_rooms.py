"""Sokoban rooms of RAGEN's own distribution, so that results compare with the paper's.

A random walk digs the floor, then the game is played backwards from the solved room, by pulling,
and the position farthest from solved is the initial state. The scheme is gym-sokoban's (Schrader,
2018; after Racanière et al., arXiv 1707.06203, appendix) with RAGEN's numbers (arXiv 2504.20073,
released environment). Rooms with few pushes are frequent, and a few need more than ten moves.

No training room has one of these layouts: two thirds of the rooms have more walls than any training
room, and of the others only those in the ``eval`` split are kept. A few layouts are so frequent
that the kept rooms alone would be much too easy. Therefore the scheme's first room only decides the
kind (whether it is open, and its difficulty), and rooms are sampled until one of this kind may be
kept: the mix of kinds is then the scheme's own.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import NamedTuple

from ragen_pl.envs.boards import mask_of
from ragen_pl.envs.sokoban.rooms import (
    Room,
    difficulty_of_length,
    most_walls,
    outer_walls,
    split_of_board,
)
from ragen_pl.envs.sokoban.search import Board, Position, offsets, shortest_plan

_TURN_PROBABILITY = 0.35
_STAMPS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""What one step of the walk digs, as (row, column) around the walker."""
_MAX_STATES = 300_000
_MAX_KINDS = 20
_MAX_ROOMS_OF_A_KIND = 2000


class _Node(NamedTuple):
    """A state of the backward game; ``boxes[i]`` is the box that belongs on target ``i``."""

    player: int
    boxes: tuple[int, ...]
    swaps: int
    last_pulled: int


def _dig(rng: random.Random, size: int) -> int:
    """Return the floor that a random walk digs."""
    floor = 0
    row, column = rng.randint(1, size - 2), rng.randint(1, size - 2)
    directions = ((-1, 0), (1, 0), (0, -1), (0, 1))
    direction = rng.choice(directions)
    for _ in range(int(1.7 * 2 * size)):
        if rng.random() < _TURN_PROBABILITY:
            direction = rng.choice(directions)
        row = min(max(row + direction[0], 1), size - 2)
        column = min(max(column + direction[1], 1), size - 2)
        for down, right in rng.choice(_STAMPS):
            floor |= 1 << ((row + down) * size + column + right)
    return floor & ~outer_walls(size)


def _pull(board: Board, node: _Node, offset: int) -> _Node | None:
    """Return the node after a step that drags along a box behind the player; None if blocked."""
    player = node.player + offset
    if board.walls >> player & 1 or player in node.boxes:
        return None
    behind = node.player - offset
    if behind not in node.boxes:
        return node._replace(player=player)
    index = node.boxes.index(behind)
    boxes = (*node.boxes[:index], node.player, *node.boxes[index + 1 :])
    return _Node(player, boxes, node.swaps + (index != node.last_pulled), index)


def _score(board: Board, node: _Node, homes: tuple[int, ...]) -> int:
    """Return the score of a position: changes of the pulled box times the boxes' distance from
    their targets; 0 if the player or a box covers a target."""
    if any(board.targets >> cell & 1 for cell in (node.player, *node.boxes)):
        return 0
    size = board.size
    distance = sum(
        abs(box // size - home // size) + abs(box % size - home % size)
        for box, home in zip(node.boxes, homes, strict=True)
    )
    return node.swaps * distance


def _play_backwards(board: Board, start: _Node, max_depth: int) -> tuple[_Node, int]:
    """Search depth first; return the first node of the highest score, and that score."""
    best, best_score = start, 0
    seen: set[Position] = set()
    stack = [(start, 0)]
    while stack and len(seen) < _MAX_STATES:
        node, depth = stack.pop()
        key = (node.player, mask_of(node.boxes))
        if key in seen:
            continue
        seen.add(key)
        score = _score(board, node, start.boxes)
        if score > best_score:
            best, best_score = node, score
        if depth + 1 < max_depth:
            after = [_pull(board, node, offset) for offset in reversed(offsets(board.size))]
            stack.extend((child, depth + 1) for child in after if child is not None)
    return best, best_score


def _wander(rng: random.Random, board: Board, node: _Node, probability: float) -> int:
    """Return the player's cell after up to three further steps that touch no box."""
    player = node.player
    for _ in range(3):
        if rng.random() >= probability:
            break
        cells = [player + offset for offset in offsets(board.size)]
        free = [c for c in cells if not board.walls >> c & 1 and c not in node.boxes]
        if free:
            player = rng.choice(free)
        probability = 0.5
    return player


class _Kind(NamedTuple):
    """The kind of a room; the mix of kinds is the scheme's."""

    is_open: bool
    """Whether it has at most as many walls as a training room may have."""
    difficulty: str


def _lay_out(rng: random.Random, size: int, num_boxes: int) -> tuple[Board, _Node] | None:
    """Return a solved room; None if the walk dug too few cells."""
    everything = (1 << size * size) - 1
    floor = _dig(rng, size)
    if floor.bit_count() <= num_boxes:
        return None
    cells = rng.sample([c for c in range(size * size) if floor >> c & 1], num_boxes + 1)
    homes = tuple(cells[1:])
    return Board(size, everything & ~floor, mask_of(homes)), _Node(cells[0], homes, 0, -1)


def _place(rng: random.Random, board: Board, solved: _Node) -> Room | None:
    """Return the room whose initial state is farthest from solved; None if there is none."""
    max_depth = 300 if len(solved.boxes) == 1 else 10
    best, score = _play_backwards(board, solved, max_depth)
    if score == 0:
        return None
    player = _wander(rng, board, best, 0.8 if score == 1 else 0.5)
    boxes = mask_of(best.boxes)
    plan = shortest_plan(board, player, boxes)
    if plan is None:
        return None
    return Room(board, player, boxes, difficulty_of_length(len(plan)), len(plan))


def _is_open(board: Board) -> bool:
    inner = board.walls & ~outer_walls(board.size)
    return inner.bit_count() <= most_walls(board.size)


def _try_room(rng: random.Random, size: int, num_boxes: int, kind: _Kind | None) -> Room | None:
    """Sample one room; return None if that fails or if, given a ``kind``, the room is of another
    kind or must not be kept."""
    laid_out = _lay_out(rng, size, num_boxes)
    if laid_out is None:
        return None
    board, solved = laid_out
    if kind is not None and (
        _is_open(board) != kind.is_open or (kind.is_open and split_of_board(board) != "eval")
    ):
        return None
    room = _place(rng, board, solved)
    return None if kind is not None and room and room.difficulty != kind.difficulty else room


@lru_cache(maxsize=4096)
def sample_reference_room(seed: int, size: int, num_boxes: int) -> Room:
    """Return the room that a seed decides, among those kept for evaluation sets.

    Raises:
        ValueError: if none is found.
    """
    rng = random.Random(f"sokoban reference {size} {num_boxes} {seed}")
    for _ in range(_MAX_KINDS):
        first = _try_room(rng, size, num_boxes, None)
        if first is None:
            continue
        kind = _Kind(_is_open(first.board), first.difficulty)
        # The rarest kinds may have no layout that may be kept: then another kind is sampled.
        for _ in range(_MAX_ROOMS_OF_A_KIND):
            room = _try_room(rng, size, num_boxes, kind)
            if room is not None:
                return room
    raise ValueError(
        f"no {size}x{size} reference room with {num_boxes} boxes in {_MAX_KINDS} tries: choose a "
        "larger size or fewer boxes"
    )
