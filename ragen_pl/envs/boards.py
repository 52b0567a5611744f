"""Square boards: cells and masks, symmetries, and the split that a board belongs to.

A cell is a number, counted row by row; a set of cells is a bit mask.

The split of a board depends on its layout alone, that is, on what never moves: walls and targets,
holes and goal. It is computed from a hash of the layout's canonical form (the least of its eight
rotations and reflections). Moves never change the layout, so whatever the seeds, no state visited
in training, even rotated or mirrored, is a state of an evaluation set; and no board on which
settings were tuned is in an evaluation set on which they are reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Literal, NamedTuple

BoardSplit = Literal["train", "tuning", "eval"]
"""Boards to train on, to tune settings on, and to report on."""
RANDOM_NAMES: dict[BoardSplit, str] = {"train": "train", "tuning": "tuning", "eval": "panel"}
"""Part of the text that seeds a split's boards. The evaluation boards keep their former name,
"panel": another text would give other boards, and scores would not compare with earlier ones."""
_NUM_BUCKETS = 8
_HELD_OUT: dict[int, BoardSplit] = {0: "tuning", 1: "eval"}
"""Hash buckets of the held-out splits, one layout in eight each; all other layouts are for
training."""


@lru_cache(maxsize=16)
def _symmetries(size: int) -> tuple[itemgetter[tuple[int, ...]], ...]:
    """Return the eight symmetries of the square, each as a new order of a flat board's cells."""
    orders = []
    for mirrored in (False, True):
        rows = [[row * size + column for column in range(size)] for row in range(size)]
        if mirrored:
            rows = [row[::-1] for row in rows]
        for _ in range(4):
            rows = [list(row) for row in zip(*rows[::-1], strict=True)]
            orders.append(itemgetter(*[cell for row in rows for cell in row]))
    return tuple(orders)


class SquareSymmetry(NamedTuple):
    """A rotation or reflection of a square board."""

    cells: tuple[int, ...]
    """Image of each cell."""
    offsets: dict[int, int]
    """Image of each step to a neighboring cell, as differences of cells."""


@lru_cache(maxsize=16)
def square_symmetries(size: int) -> tuple[SquareSymmetry, ...]:
    """Return the eight symmetries of a square board, the identity first."""
    found = []
    for read in _symmetries(size):
        order = read(tuple(range(size * size)))
        cells = tuple(order.index(cell) for cell in range(size * size))
        right, down = cells[1] - cells[0], cells[size] - cells[0]
        offsets = {1: right, -1: -right, size: down, -size: -down}
        found.append(SquareSymmetry(cells, offsets))
    return tuple(sorted(found, key=lambda each: each.cells))


def canonical_digest(marks: Iterable[int], size: int) -> str:
    """Return a hash that is equal for all symmetries of a board.

    Args:
        marks: One number below 256 per cell, which encodes the cell's content or only its part of
            the layout.
        size: Cells along one side.
    """
    flat = tuple(marks)
    least = min(read(flat) for read in _symmetries(size))
    return hashlib.sha256(bytes(least)).hexdigest()


def split_of_digest(digest: str) -> BoardSplit:
    """Return the split of the boards whose layout has this canonical digest."""
    return _HELD_OUT.get(int(digest[:8], 16) % _NUM_BUCKETS, "train")


@lru_cache(maxsize=1 << 14)
def cells_of(mask: int) -> tuple[int, ...]:
    """Return the cells of a mask, lowest first; boards are drawn again and again."""
    cells = []
    while mask:
        lowest = mask & -mask
        cells.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(cells)


def mask_of(cells: Iterable[int]) -> int:
    """Return the mask of some cells."""
    mask = 0
    for cell in cells:
        mask |= 1 << cell
    return mask


def marked_rows(marks: Sequence[str], size: int, spaced: bool) -> list[str]:
    """Return one string per row of a flat board.

    Args:
        marks: One character per cell.
        size: Cells along one side.
        spaced: Whether a space stands between the cells of a row.
    """
    between = " " if spaced else ""
    return [between.join(marks[first : first + size]) for first in range(0, len(marks), size)]


def spaced_pieces(marks: Sequence[str]) -> Iterator[str]:
    """List the pieces of which all spaced rows of these marks consist."""
    yield from (*marks, *(f" {mark}" for mark in marks), "\n")


def coordinate(cell: int, size: int) -> str:
    """Write a cell as zero-indexed (row,column)."""
    return f"({cell // size},{cell % size})"
