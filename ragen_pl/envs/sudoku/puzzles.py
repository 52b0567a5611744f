"""Random Sudoku puzzles with one solution, and the split that a puzzle belongs to.

A 9×9 puzzle belongs to the split of its solution's form, so that training visits no state of an
evaluation set, not even a symmetric image of one. The 288 grids of 4×4 cells have but two forms;
their puzzles belong to the split of the puzzle's own form: no start of one split, or an image of
it, is a start of another one, but training may pass on its way, with some cells filled in, what is
a start of an evaluation set.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Literal, NamedTuple

from ragen_pl.envs.boards import RANDOM_NAMES, BoardSplit, split_of_digest
from ragen_pl.envs.sudoku.forms import form_of, solution_form
from ragen_pl.envs.sudoku.grid import (
    Grid,
    completions,
    needs_guess,
    reason_for,
    unique_solution,
)

Reasoning = Literal["singles", "any"]
MOST_EMPTY = {4: 12, 9: 50}
"""The sizes of grids, and how many cells may be empty. No 4×4 puzzle with more has one solution; of
9×9 grids, more rarely do."""
_SLOTS = 20
"""Seeds after which the mix of empty cells repeats."""
_MAX_TRIES = 20_000


class Puzzle(NamedTuple):
    """An initial state."""

    givens: Grid
    needs_guess: bool


def num_empty_of_seed(seed: int, fewest: int, most: int) -> int:
    """Return the number of a seed's empty cells, evenly mixed over any 20 consecutive seeds."""
    return fewest + seed % _SLOTS * (most - fewest + 1) // _SLOTS


def difficulty_of(num_empty: int, size: int) -> str:
    """Return the name of a number of empty cells: a range of an eighth of the grid."""
    width = size**2 // 8
    first = (num_empty - 1) // width * width + 1
    return f"{first}-{first + width - 1}"


# Cached, since the members of a group reset to the same puzzle one after another.
@lru_cache(maxsize=4096)
def sample_puzzle(
    seed: int, size: int, num_empty: int, reasoning: Reasoning, split: BoardSplit
) -> Puzzle:
    """Return the puzzle that a seed decides: with so many empty cells, one solution, in the split.

    Raises:
        ValueError: if none is found.
    """
    rng = random.Random(f"sudoku {RANDOM_NAMES[split]} {size} {num_empty} {reasoning} {seed}")
    for _ in range(_MAX_TRIES):
        solution = next(completions((0,) * size**2, rng))
        if _splits_by_solution(size) and split_of_digest(solution_form(solution)) != split:
            continue
        givens = _emptied(solution, num_empty, reasoning, rng)
        if givens is None:
            continue
        if _splits_by_solution(size) or split_of_digest(form_of(givens)) == split:
            return Puzzle(givens, reasoning == "any" and needs_guess(givens, solution))
    raise ValueError(
        f"no {size}x{size} puzzle of split {split!r} with {num_empty} empty cells was found in "
        f"{_MAX_TRIES} tries: set most_empty lower, or reasoning to 'any'"
    )


def _splits_by_solution(size: int) -> bool:
    return size > 4


def _emptied(
    solution: Grid, num_empty: int, reasoning: Reasoning, rng: random.Random
) -> Grid | None:
    """Empty cells in random order, as long as the rest has one solution; None if that is too few.

    A digit that can be put back for a reason changes nothing about the number of solutions.
    """
    grid, order = list(solution), list(range(len(solution)))
    rng.shuffle(order)
    for cell in order:
        if grid.count(0) == num_empty:
            break
        grid[cell] = 0
        if reason_for(grid, cell, solution[cell]) is not None:
            continue
        if reasoning == "singles" or unique_solution(tuple(grid)) is None:
            grid[cell] = solution[cell]
    return tuple(grid) if grid.count(0) == num_empty else None
