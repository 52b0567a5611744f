"""Sudoku as text: actions, rows, candidates, thoughts, and the pieces for a small tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

from ragen_pl.envs.sudoku.grid import REASONS, Placement, candidates, layout, layout_of

EMPTY = "."
STUCK = "stuck"
_NO_DIGIT = " none"


class Action(NamedTuple):
    """A digit to place."""

    cell: int
    digit: int


@lru_cache(maxsize=4)
def actions_by_name(size: int) -> dict[str, Action]:
    """Return all actions by their names: row, column and digit, such as ``1,2,3``."""
    numbers = range(size)
    return {
        action_name(row * size + column, digit + 1, size): Action(row * size + column, digit + 1)
        for row, column, digit in product(numbers, numbers, numbers)
    }


def action_name(cell: int, digit: int, size: int) -> str:
    """Return the name of an action."""
    return f"{_place(cell, size)},{digit}"


def _place(cell: int, size: int) -> str:
    return f"{cell // size + 1},{cell % size + 1}"


def grid_rows(grid: Sequence[int]) -> list[str]:
    """Return the rows, with lines between boxes."""
    of = layout_of(grid)
    rows = []
    for row, cells in enumerate(of.units[0]):
        if row and row % of.box == 0:
            rows.append(_rule(of.size))
        marks = [str(grid[cell] or EMPTY) for cell in cells]
        parts = [" ".join(marks[first : first + of.box]) for first in range(0, of.size, of.box)]
        rows.append(" | ".join(parts))
    return rows


def _rule(size: int) -> str:
    box = layout(size).box
    return "-+-".join(["-" * (2 * box - 1)] * box)


def candidate_rows(grid: Sequence[int]) -> list[str]:
    """Return the digits that fit each empty cell."""
    size = layout_of(grid).size
    return [
        f"{_place(cell, size)}:{_listed(candidates(grid, cell))}"
        for cell, digit in enumerate(grid)
        if not digit
    ]


def _listed(digits: Sequence[int]) -> str:
    return "".join(f" {digit}" for digit in digits) or _NO_DIGIT


def statements(placements: Sequence[Placement], size: int, *, with_reasons: bool) -> Iterator[str]:
    """Iterate over the words of a thought about placements."""
    for cell, digit, reason in placements:
        yield action_name(cell, digit, size)
        if with_reasons:
            yield reason


def row_pieces(size: int) -> Iterator[str]:
    """List the pieces of which all grids consist: a row's cells within one box, or single cells if
    these would be too many."""
    box = layout(size).box
    yield from (_rule(size) + "\n", " | ", "\n")
    digits = [str(digit) for digit in range(1, size + 1)]
    for cells in product((EMPTY, *digits), repeat=box if size == 4 else 1):
        given = [cell for cell in cells if cell != EMPTY]
        if len(set(given)) == len(given):
            part = " ".join(cells)
            yield from (part, f"{part} ", f"{part} | ", f"{part}\n")


def candidate_pieces(size: int) -> Iterator[str]:
    """List the pieces of which all lists of candidates consist."""
    for cell in range(size * size):
        yield f"{_place(cell, size)}:"
    for count in range(1, size + 1):
        for digits in combinations(range(1, size + 1), count if size == 4 else 1):
            yield from (_listed(digits), _listed(digits) + "\n")
    yield from (_NO_DIGIT, f"{_NO_DIGIT}\n")


def thought_pieces() -> Iterator[str]:
    """List the words of a thought that are no actions, each with the space before it."""
    yield from (STUCK, *(f" {reason}" for reason in REASONS))
