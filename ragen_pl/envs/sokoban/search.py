"""Search in Sokoban: single moves, shortest plans, and all positions at a given distance.

Sets of cells are bit masks (cell = row * size + column), and a position is (player, boxes). The
outermost cells are walls, so no move leaves the board.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import NamedTuple

from ragen_pl.envs.boards import cells_of
from ragen_pl.envs.thoughts import progress

ACTIONS = ("Up", "Down", "Left", "Right")

Position = tuple[int, int]
"""The player's cell and the mask of the boxes."""


class Board(NamedTuple):
    """The layout of a room: what never moves."""

    size: int
    walls: int
    targets: int


def offsets(size: int) -> tuple[int, int, int, int]:
    """Return how far each of ``ACTIONS`` moves a cell."""
    return (-size, size, -1, 1)


def move(board: Board, position: Position, action: int) -> Position:
    """Return the position after one action; a blocked action changes nothing."""
    player, boxes = position
    offset = offsets(board.size)[action]
    ahead = 1 << (player + offset)
    if board.walls & ahead:
        return position
    if boxes & ahead:
        behind = 1 << (player + 2 * offset)
        if (board.walls | boxes) & behind:
            return position
        boxes ^= ahead | behind
    return player + offset, boxes


def positions_after(
    board: Board, position: Position, actions: Sequence[str]
) -> tuple[Position, ...]:
    """Return the positions before and after each action, as long as the room is not solved."""
    found = [position]
    for name in actions:
        if found[-1][1] == board.targets:
            break
        found.append(move(board, found[-1], ACTIONS.index(name)))
    return tuple(found)


@lru_cache(maxsize=4096)
def live_cells(board: Board) -> int:
    """Return the cells from which a lone box could still be pushed to some target.

    A box anywhere else makes the room unsolvable, whatever the player does.
    """
    seen = board.targets
    todo = list(cells_of(seen))
    while todo:
        cell = todo.pop()
        for offset in offsets(board.size):
            source, player = cell - offset, cell - 2 * offset
            # ``player`` may lie off the board only when ``source`` is a wall.
            if board.walls >> source & 1 or board.walls >> player & 1 or seen >> source & 1:
                continue
            seen |= 1 << source
            todo.append(source)
    return seen


@lru_cache(maxsize=1 << 16)
def shortest_plan(board: Board, player: int, boxes: int) -> tuple[str, ...] | None:
    """Return a shortest plan that puts every box on a target; None if there is none.

    Breadth first; among equally short plans the order of ``ACTIONS`` decides.
    """
    start = (player, boxes)
    if boxes == board.targets:
        return ()
    dead = ~live_cells(board)
    came_from: dict[Position, tuple[Position, int]] = {start: (start, -1)}
    layer = [start]
    while layer:
        following = []
        for position in layer:
            for action in range(4):
                after = move(board, position, action)
                if after in came_from or after[1] & dead:
                    continue
                came_from[after] = (position, action)
                if after[1] == board.targets:
                    return _trace(came_from, after)
                following.append(after)
        layer = following
    return None


def plan_progress(board: Board, position: Position, plan: Sequence[str]) -> float:
    """Return how far a plan leads, in [0, 1]; 1 only if its last move solves the room.

    The plan is followed up to the first move after which the room cannot be solved, or the first
    word that is no action. The progress is the share of the shortest way to a solution that is then
    behind; detours count nothing. Of a plan that goes on after the solution, it is the share of the
    moves before.
    """
    moves = list(takewhile(ACTIONS.__contains__, plan))
    followed = positions_after(board, position, moves)
    if followed[-1][1] == board.targets:
        return (len(followed) - 1) / len(plan) if plan else 1.0
    start = shortest_plan(board, *position)
    if start is None:
        return 0.0
    last = followed[-1]
    for before, after in pairwise(followed):
        # Only a push can make a room unsolvable: any other step can be undone.
        if after[1] != before[1] and shortest_plan(board, *after) is None:
            last = before
            break
    rest = shortest_plan(board, *last)
    assert rest is not None
    return progress(len(start), len(rest))


def _trace(came_from: dict[Position, tuple[Position, int]], end: Position) -> tuple[str, ...]:
    plan = []
    position, action = came_from[end]
    while action >= 0:
        plan.append(ACTIONS[action])
        position, action = came_from[position]
    return tuple(reversed(plan))


def starts_by_length(board: Board, longest: int) -> list[list[Position]]:
    """List the positions whose shortest plan has 0, 1, ... ``longest`` moves.

    Search backwards from all solved positions: each move is undone as a step and as a pull, so
    one search yields every start of a board at once.
    """
    walls, steps = board.walls, offsets(board.size)
    free = ((1 << board.size**2) - 1) & ~walls & ~board.targets
    layers = [[(player, board.targets) for player in cells_of(free)]]
    seen = set(layers[0])
    for _ in range(longest):
        layer: list[Position] = []
        for player, boxes in layers[-1]:
            for offset in steps:
                origin = player - offset
                if (walls | boxes) >> origin & 1:
                    continue
                step = (origin, boxes)
                if step not in seen:
                    seen.add(step)
                    layer.append(step)
                pushed = 1 << (player + offset)
                if boxes & pushed:
                    pull = (origin, boxes ^ pushed ^ (1 << player))
                    if pull not in seen:
                        seen.add(pull)
                        layer.append(pull)
        layers.append(layer)
    return layers


def fewest_pushes(board: Board, start: Position, length: int) -> int | None:
    """Return the fewest pushes of any plan that solves in ``length`` moves; None without one."""
    layer = {start: 0}
    for _ in range(length):
        following: dict[Position, int] = {}
        for position, pushes in layer.items():
            for action in range(4):
                after = move(board, position, action)
                count = pushes + (after[1] != position[1])
                if count < following.get(after, count + 1):
                    following[after] = count
        layer = following
    counts = [count for (_, boxes), count in layer.items() if boxes == board.targets]
    return min(counts, default=None)
