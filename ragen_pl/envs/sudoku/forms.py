"""Symmetries of Sudoku, and keys of grids that are equal for all symmetric images.

The symmetries are the exchanges of digits, of bands of rows and of rows within a band, the same for
columns, and the transposition: 3,072 of a 4×4 grid, 1.2 · 10¹² of a 9×9 grid.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, permutations
from math import factorial
from typing import NamedTuple

from ragen_pl.envs.sudoku.grid import Grid, layout_of

_ROUNDS = 4
"""Rounds in ``form_of``; more tell no more grids apart."""
_MOST_EXCHANGES = 48


class GridSymmetry(NamedTuple):
    """A change of places and digits."""

    cells: tuple[int, ...]
    """Image of each cell."""
    digits: tuple[int, ...]
    """Image of each digit; 0, an empty cell, stays."""

    def image(self, grid: Sequence[int]) -> Grid:
        """Return the image of a grid."""
        moved = [0] * len(grid)
        for cell, digit in zip(self.cells, grid, strict=True):
            moved[cell] = self.digits[digit]
        return tuple(moved)


# One cache entry per size: an environment asks again for every solution that is shown in images.
@lru_cache(maxsize=4)
def digit_exchanges(size: int) -> tuple[GridSymmetry, ...]:
    """Return the exchanges of digits that leave the places alone, the identity first; of 9×9 grids
    a fixed random sample."""
    cells, digits = tuple(range(size * size)), list(range(1, size + 1))
    if factorial(size) <= _MOST_EXCHANGES:
        return tuple(GridSymmetry(cells, (0, *order)) for order in permutations(digits))
    rng, orders = random.Random(f"sudoku digits {size}"), {tuple(digits): None}
    while len(orders) < _MOST_EXCHANGES:
        orders[tuple(rng.sample(digits, size))] = None
    return tuple(GridSymmetry(cells, (0, *order)) for order in orders)


def form_of(grid: Sequence[int]) -> str:
    """Return a key of a grid with empty cells, equal for all symmetric images.

    Cells, lines, boxes and digits take turns to describe themselves by those they belong to
    (Weisfeiler and Leman). Nearly all grids that are no images of each other have different keys:
    3,402 classes of 4×4 puzzles with two to twelve empty cells have 3,378.
    """
    of = layout_of(grid)
    rows, columns, boxes = of.units
    groups = {
        "line": [*rows, *columns],
        "box": list(boxes),
        "digit": [
            tuple(cell for cell, each in enumerate(grid) if each == digit)
            for digit in range(1, of.size + 1)
        ],
    }
    cells = [str(bool(digit)) for digit in grid]
    for _ in range(_ROUNDS):
        inside: list[list[str]] = [[] for _ in cells]
        for kind, members in groups.items():
            for group in members:
                described = _digest((kind, *sorted(cells[cell] for cell in group)))
                for cell in group:
                    inside[cell].append(described)
        cells = [_digest((own, *sorted(of_it))) for own, of_it in zip(cells, inside, strict=True)]
    return _digest(sorted(cells))


def solution_form(solution: Grid) -> str:
    """Return a key of a complete grid, equal for all symmetric images, and for some others, too.

    It consists of the cycle lengths of the permutations of digits that lead from line to line
    within a band. Of the 4×4 grids there are but two forms.
    """
    of = layout_of(solution)
    kinds = []
    for lines in of.units[:2]:
        bands = [lines[first : first + of.box] for first in range(0, of.size, of.box)]
        kinds.append(
            sorted(
                sorted(_cycles(solution, one, other) for one, other in combinations(band, 2))
                for band in bands
            )
        )
    return _digest(map(str, sorted(kinds)))


def _cycles(solution: Grid, one: Sequence[int], other: Sequence[int]) -> list[int]:
    follows = {solution[a]: solution[b] for a, b in zip(one, other, strict=True)}
    lengths = []
    while follows:
        digit, length = next(iter(follows)), 0
        while digit in follows:
            digit, length = follows.pop(digit), length + 1
        lengths.append(length)
    return sorted(lengths)


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
