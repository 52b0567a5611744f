"""Sudoku grids: what a digit must not meet, all completions, and the reasons for a placement.

A grid is a flat tuple of digits, counted row by row; 0 is an empty cell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import isqrt
from operator import itemgetter
from typing import Literal, NamedTuple, get_args

Grid = tuple[int, ...]
Reason = Literal["cell", "row", "column", "box", "guess"]
"""Why a digit belongs into a cell: no other digit fits the cell; or the digit fits no other cell of
its row, column or box; or, where no cell has such a reason, a guess that is right."""
REASONS: tuple[Reason, ...] = get_args(Reason)


class Layout(NamedTuple):
    """The rows, columns and boxes of a grid."""

    size: int
    box: int
    """Cells along one side of a box."""
    units: tuple[tuple[tuple[int, ...], ...], ...]
    """Cells of each row, of each column and of each box."""
    units_of: tuple[tuple[int, int, int], ...]
    """Numbers of each cell's row, column and box."""
    peers: tuple[Callable[[Sequence[int]], tuple[int, ...]], ...]
    """Reader of the digits in each cell's row, column and box, without the cell itself."""


@lru_cache(maxsize=4)
def layout(size: int) -> Layout:
    """Return the layout of grids with ``size`` cells along one side."""
    box, cells = isqrt(size), range(size * size)
    units_of = tuple((c // size, c % size, c // size // box * box + c % size // box) for c in cells)
    units = tuple(
        tuple(tuple(c for c in cells if units_of[c][kind] == number) for number in range(size))
        for kind in range(3)
    )
    peers = tuple(
        itemgetter(
            *[c for c in cells if c != cell and any(map(int.__eq__, units_of[c], units_of[cell]))]
        )
        for cell in cells
    )
    return Layout(size, box, units, units_of, peers)


def layout_of(grid: Sequence[int]) -> Layout:
    """Return the layout of a grid."""
    return layout(isqrt(len(grid)))


def fits(grid: Sequence[int], cell: int, digit: int) -> bool:
    """Return whether a digit is in none of the other cells of a cell's row, column and box."""
    return digit not in layout_of(grid).peers[cell](grid)


def candidates(grid: Sequence[int], cell: int) -> tuple[int, ...]:
    """Return the digits that fit a cell."""
    of = layout_of(grid)
    seen = of.peers[cell](grid)
    return tuple(digit for digit in range(1, of.size + 1) if digit not in seen)


def reason_for(grid: Sequence[int], cell: int, digit: int) -> Reason | None:
    """Return why a digit that fits an empty cell must stand there; None if no single unit shows it.

    The first of cell, row, column and box that shows it is returned.
    """
    return next((reason for reason in REASONS[:4] if holds_by(grid, cell, digit, reason)), None)


def holds_by(grid: Sequence[int], cell: int, digit: int, reason: Reason) -> bool:
    """Return whether a reason other than a guess shows that a digit must stand in an empty cell."""
    of = layout_of(grid)
    if grid[cell] or not fits(grid, cell, digit):
        return False
    if reason == "cell":
        return len(set(of.peers[cell](grid)) - {0}) == of.size - 1
    kind = REASONS.index(reason) - 1
    return not any(
        other != cell and not grid[other] and fits(grid, other, digit)
        for other in of.units[kind][of.units_of[cell][kind]]
    )


def has_reason(grid: Sequence[int]) -> bool:
    """Return whether a reason shows a digit of any empty cell."""
    return any(
        reason_for(grid, cell, digit)
        for cell, given in enumerate(grid)
        if not given
        for digit in candidates(grid, cell)
    )


class Placement(NamedTuple):
    """A digit for a cell, with the reason."""

    cell: int
    digit: int
    reason: Reason


def next_placement(grid: Sequence[int], solution: Grid) -> Placement:
    """Return the first empty cell in reading order whose digit a reason shows; if there is none,
    the first empty cell as a guess."""
    empty = [cell for cell, digit in enumerate(grid) if not digit]
    for cell in empty:
        reason = reason_for(grid, cell, solution[cell])
        if reason is not None:
            return Placement(cell, solution[cell], reason)
    return Placement(empty[0], solution[empty[0]], "guess")


def needs_guess(givens: Grid, solution: Grid) -> bool:
    """Return whether a puzzle cannot be solved by the reasons of ``reason_for`` alone."""
    grid = list(givens)
    while 0 in grid:
        cell, digit, reason = next_placement(grid, solution)
        if reason == "guess":
            return True
        grid[cell] = digit
    return False


def completions(grid: Grid, rng: random.Random | None = None) -> Iterator[Grid]:
    """Iterate over the complete grids that contain a grid; in random order if ``rng`` is given."""
    of = layout_of(grid)
    everything = (1 << of.size) - 1
    cells = list(grid)
    used = [[0] * of.size for _ in range(3)]

    def free(cell: int) -> int:
        row, column, box = of.units_of[cell]
        return everything & ~(used[0][row] | used[1][column] | used[2][box])

    def put(cell: int, digit: int) -> None:
        """Place a digit, or take it back."""
        cells[cell] ^= digit
        for kind, number in enumerate(of.units_of[cell]):
            used[kind][number] ^= 1 << digit - 1

    def search() -> Iterator[Grid]:
        empty = [(free(cell).bit_count(), cell) for cell, digit in enumerate(cells) if not digit]
        if not empty:
            yield tuple(cells)
            return
        _, cell = min(empty)
        possible = free(cell)
        digits = [digit for digit in range(1, of.size + 1) if possible >> digit - 1 & 1]
        if rng is not None:
            rng.shuffle(digits)
        for digit in digits:
            put(cell, digit)
            yield from search()
            put(cell, digit)

    for cell, digit in enumerate(grid):
        if digit:
            cells[cell] = 0
            if not free(cell) >> digit - 1 & 1:
                return
            put(cell, digit)
    yield from search()


# Cached, since every copy of a start asks for it.
@lru_cache(maxsize=4096)
def unique_solution(givens: Grid) -> Grid | None:
    """Return the only completion of a grid; None if there is none, or another one."""
    found = tuple(islice(completions(givens), 2))
    return found[0] if len(found) == 1 else None
