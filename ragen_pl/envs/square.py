"""Handle square boards: cells and masks, symmetries, and the split that a board belongs to.

A cell is a number, counted row by row; a set of cells is a bit mask.

Which split a board belongs to is a property of the board: a hash of its canonical form (the least
of its eight rotations and reflections). So no training board, turned or mirrored, is ever on a
panel, whatever the seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import itemgetter

_PANEL_BUCKETS = 8
"""One board in this many is kept for panels."""


@lru_cache(maxsize=16)
def _symmetries(size: int) -> tuple[itemgetter[tuple[int, ...]], ...]:
    """Return the eight symmetries of the square, each reading a flat board in a new order."""
    orders = []
    for mirrored in (False, True):
        rows = [[row * size + column for column in range(size)] for row in range(size)]
        if mirrored:
            rows = [row[::-1] for row in rows]
        for _ in range(4):
            rows = [list(row) for row in zip(*rows[::-1], strict=True)]
            orders.append(itemgetter(*[cell for row in rows for cell in row]))
    return tuple(orders)


def canonical_digest(marks: Iterable[int], size: int) -> str:
    """Identify a board up to its symmetries; ``marks`` gives each cell a number below 256."""
    flat = tuple(marks)
    least = min(read(flat) for read in _symmetries(size))
    return hashlib.sha256(bytes(least)).hexdigest()


def is_panel_digest(digest: str) -> bool:
    """Tell whether the board with this canonical digest is kept for panels."""
    return int(digest[:8], 16) % _PANEL_BUCKETS == 0


def cells_of(mask: int) -> Iterator[int]:
    """Iterate over the cells of a mask, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def mask_of(cells: Iterable[int]) -> int:
    """Return the mask of some cells."""
    mask = 0
    for cell in cells:
        mask |= 1 << cell
    return mask


def coordinate(cell: int, size: int) -> str:
    """Write a cell as zero-indexed (row,column)."""
    return f"({cell // size},{cell % size})"
