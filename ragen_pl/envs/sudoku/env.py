"""Sudoku, cell by cell (RAGEN-2, arXiv 2604.06268): place digits until the grid is complete."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ragen_pl.envs.arrays import Features, one_hot
from ragen_pl.envs.base import (
    Symmetry,
    TextEnv,
    hash_without,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.boards import BoardSplit
from ragen_pl.envs.picture import Drawing
from ragen_pl.envs.sudoku import text as words
from ragen_pl.envs.sudoku.forms import GridSymmetry, digit_exchanges, form_of
from ragen_pl.envs.sudoku.grid import (
    REASONS,
    Grid,
    Placement,
    fits,
    has_reason,
    holds_by,
    layout,
    next_placement,
    reason_for,
    unique_solution,
)
from ragen_pl.envs.sudoku.picture import draw_grid
from ragen_pl.envs.sudoku.puzzles import (
    MOST_EMPTY,
    Puzzle,
    Reasoning,
    difficulty_of,
    num_empty_of_seed,
    sample_puzzle,
)
from ragen_pl.envs.thoughts import StatementScore

Observation = Literal["grid", "grid_candidates"]
Thought = Literal["plan", "reasons"]


class Sudoku(TextEnv):
    """Sudoku: fill a grid so that every row, column and box has each digit once.

    An action places a digit in a cell. The right digit earns 1, a wrong one that meets no equal
    digit in its row, column and box 0.5; both stay. Any other action costs 0.1 and changes nothing.
    The digit that completes the grid earns 10 more (RAGEN-2's rewards). The episode also ends when
    no digit can be placed any more, which only a wrong one brings about.

    Args:
        size: Cells along one side: 4 or 9.
        fewest_empty: Fewest empty cells of a puzzle (RAGEN-2 has 40, 50 or 60 % of all).
        most_empty: Most empty cells of a puzzle; the numbers between are equally frequent.
        reasoning: ``singles`` for puzzles that can be solved without a guess, cell by cell, because
            a cell has one candidate or a digit one cell of its row, column or box; ``any`` for all
            puzzles with one solution (on 9×9 cells).
        observation: The grid, or the grid and the digits that fit each empty cell, as in RAGEN-2.
        split: ``train`` for puzzles to learn from, ``tuning`` to choose settings by, ``eval`` for
            an evaluation set; no two of them share a puzzle or a symmetric image of one. Of 9×9
            cells, they do not even share a state.
        max_actions: Maximum actions per trajectory.
        thought: Content of the expert's thought: the placements of its turn (``plan``), or each of
            them with the reason for it (``reasons``).
    """

    name = "sudoku"

    def __init__(
        self,
        size: int = 4,
        fewest_empty: int = 3,
        most_empty: int = 10,
        reasoning: Reasoning = "singles",
        observation: Observation = "grid_candidates",
        split: BoardSplit = "train",
        max_actions: int = 20,
        thought: Thought = "reasons",
    ) -> None:
        if size not in MOST_EMPTY:
            raise ValueError(f"size: {size} is neither of {', '.join(map(str, MOST_EMPTY))}")
        if not 1 <= fewest_empty <= most_empty:
            raise ValueError(
                f"fewest_empty: {fewest_empty} is not between 1 and most_empty, which is "
                f"{most_empty}"
            )
        if most_empty > MOST_EMPTY[size]:
            raise ValueError(
                f"most_empty: {most_empty} is more than {MOST_EMPTY[size]}, of which {size}x{size} "
                "puzzles with one solution are hardly found"
            )
        if max_actions < most_empty:
            raise ValueError(
                f"max_actions: {max_actions} is less than most_empty, which is {most_empty}: such "
                "puzzles could not be solved"
            )
        self.reasoning: Reasoning = one_of("reasoning", reasoning, Reasoning)
        if size == 4 and reasoning == "any":
            raise ValueError(
                "reasoning: 'any' is for size 9; no puzzle of size 4 needs more than 'singles'"
            )
        self.size = size
        self.fewest_empty, self.most_empty = fewest_empty, most_empty
        self.observation: Observation = one_of("observation", observation, Observation)
        self.split: BoardSplit = one_of("split", split, BoardSplit)
        self.max_actions = max_actions
        self.thought: Thought = one_of("thought", thought, Thought)
        self.actions: tuple[str, ...] = tuple(words.actions_by_name(size))
        self._givens: Grid = (0,) * size**2
        self._solution: Grid = self._givens
        self._board = list(self._givens)
        self._num_actions = 0

    @property
    def instruction(self) -> str:
        """The task in words."""
        box = layout(self.size).box
        lines = [
            f"Sudoku: fill the empty cells ({words.EMPTY}) so that every row, column and"
            f" {box}x{box} box has each digit from 1 to {self.size} once.",
            "An action is row,column,digit, counted from 1,1 at the top left.",
            "A digit stays where it is placed; one that its row, column or box has already is not"
            " placed.",
        ]
        if self.observation == "grid_candidates":
            lines.append("Below the grid: each empty cell and the digits that still fit.")
        return "\n".join(lines)

    @property
    def actions_text(self) -> str:
        """The form of the names, which are too many for a prompt."""
        return f"row,column,digit, each from 1 to {self.size}"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Take the puzzle that the seed decides; the noise seed has no effect on Sudoku."""
        puzzle = self._puzzle_of(resolve_seed(self, seed))
        self._begin(puzzle.givens)
        self._num_actions = 0
        info = {
            "difficulty": self._difficulty(puzzle),
            "optimal_length": puzzle.givens.count(0),
        }
        return self.render_text(), info

    def _puzzle_of(self, seed: int) -> Puzzle:
        num_empty = num_empty_of_seed(seed, self.fewest_empty, self.most_empty)
        return sample_puzzle(seed, self.size, num_empty, self.reasoning, self.split)

    def _difficulty(self, puzzle: Puzzle) -> str:
        name = difficulty_of(puzzle.givens.count(0), self.size)
        return f"{name} guess" if puzzle.needs_guess else name

    def _begin(self, givens: Grid) -> None:
        solution = unique_solution(givens)
        if solution is None:
            raise ValueError(f"givens: {list(givens)} have no solution, or several")
        self._givens, self._solution, self._board = givens, solution, list(givens)

    def difficulty_of(self, seed: int) -> str:
        """Return the difficulty of a puzzle, from the seed alone where none needs a guess."""
        if self.reasoning == "any":
            return self._difficulty(self._puzzle_of(seed))
        num_empty = num_empty_of_seed(seed, self.fewest_empty, self.most_empty)
        return difficulty_of(num_empty, self.size)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Place a digit, if it may stand there."""
        refuse_after_end(self, self._has_ended)
        named = words.actions_by_name(self.size).get(action)
        if named is None:
            raise ValueError(f"action: {action!r} is not {self.actions_text}")
        cell, digit = named
        is_legal = not self._board[cell] and fits(self._board, cell, digit)
        reward = -0.1
        if is_legal:
            self._board[cell] = digit
            reward = 1.0 if self._solution[cell] == digit else 0.5
        self._num_actions += 1
        solved = self._is_solved
        if solved:
            reward += 10.0
        terminated = self._is_final
        truncated = self._has_ended and not terminated
        info = {"success": solved, "legal": is_legal}
        return self.render_text(), reward, terminated, truncated, info

    @property
    def _is_solved(self) -> bool:
        return tuple(self._board) == self._solution

    @property
    def _is_final(self) -> bool:
        return next(self._legal_actions(), None) is None

    @property
    def _has_ended(self) -> bool:
        return self._num_actions >= self.max_actions or self._is_final

    def _legal_actions(self) -> Iterator[str]:
        empty = [cell for cell, digit in enumerate(self._board) if not digit]
        for cell in empty:
            for digit in range(1, self.size + 1):
                if fits(self._board, cell, digit):
                    yield words.action_name(cell, digit, self.size)

    def render_text(self) -> str:
        """Return the grid, and the candidates if they are shown."""
        rows = words.grid_rows(self._board)
        if self.observation == "grid_candidates":
            rows += words.candidate_rows(self._board)
        return "\n".join(rows)

    def get_state(self) -> dict[str, Any]:
        """Return the digits, row by row, with 0 for an empty cell; the solution follows from the
        givens."""
        return {
            "size": self.size,
            "givens": list(self._givens),
            "board": list(self._board),
            "num_actions": self._num_actions,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned.

        Raises:
            ValueError: if the size is another one, or the givens do not have exactly one solution.
        """
        if state["size"] != self.size:
            raise ValueError(f"size: the state has {state['size']}, this environment {self.size}")
        self._begin(tuple(state["givens"]))
        self._board, self._num_actions = list(state["board"]), state["num_actions"]

    def features(self) -> Features:
        """Return planes of the empty cells, of each digit, and of the givens, which decide the
        solution."""
        digits = one_hot(self._board, self.size + 1).T
        givens = np.array(self._givens, dtype=bool)
        both: Features = np.vstack([digits, givens]).astype(np.float32)
        return both.reshape(-1, self.size, self.size)

    def anchor_key(self) -> str:
        """Return a key of the state without the number of actions so far."""
        return hash_without(self.get_state(), "num_actions")

    def start_key(self) -> str:
        """Return a key of the grid that is equal for all symmetric images."""
        return form_of(self._board)

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        """Draw a grid as RGB."""
        return draw_grid(state)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next placements, each the first in reading order for which a reason exists.

        After a wrong digit the thought is ``stuck``, and the action is a random one that is legal.
        """
        if self.is_lost:
            return words.STUCK, (rng.choice([*self._legal_actions()] or self.actions),)
        board, placements = list(self._board), list[Placement]()
        while 0 in board and len(placements) < max_actions:
            placements.append(next_placement(board, self._solution))
            board[placements[-1].cell] = placements[-1].digit
        return self._turn(placements)

    def _turn(self, placements: Sequence[Placement]) -> tuple[str, tuple[str, ...]]:
        stated = words.statements(placements, self.size, with_reasons=self.thought == "reasons")
        actions = [words.action_name(cell, digit, self.size) for cell, digit, _ in placements]
        return " ".join(stated), tuple(actions)

    @property
    def is_lost(self) -> bool:
        """Whether a wrong digit stands on the board."""
        return any(
            digit not in (0, right)
            for digit, right in zip(self._board, self._solution, strict=True)
        )

    def thought_correct(self, thought: str) -> bool:
        """Return whether a thought, in the expert's format, is true of the current state.

        Every digit must be right, and each reason hold when the digits before it are placed; a
        ``guess`` is true where no other reason shows any digit. ``stuck`` is true after a wrong
        digit.
        """
        return all(self._judge(thought.split(" ")))

    def _judge(self, stated: Sequence[str]) -> list[bool]:
        """Return whether each word of a thought holds."""
        if list(stated) == [words.STUCK]:
            return [self.is_lost]
        words_each = 2 if self.thought == "reasons" else 1
        board, known, held = list(self._board), words.actions_by_name(self.size), list[bool]()
        for place in range(0, len(stated), words_each):
            action, reason = known.get(stated[place]), stated[place + 1 : place + words_each]
            if action is None or board[action.cell] or self._solution[action.cell] != action.digit:
                held += [False] * words_each
                continue
            held.append(True)
            if self.thought == "reasons":
                held.append(bool(reason) and _is_reason(board, *action, reason[0]))
            board[action.cell] = action.digit
        return held

    def hindsight_turn(
        self, plan: Sequence[str], max_actions: int
    ) -> tuple[str, tuple[str, ...]] | None:
        """Return the first placements of a plan with the reasons for them, as the expert would
        write its own.

        It is None if a digit was guessed while others had reasons, for which there are no true
        words, or if the plan contains what cannot be placed.
        """
        board, placements = list(self._board), list[Placement]()
        for name in plan[:max_actions]:
            cell, digit = words.actions_by_name(self.size)[name]
            if board[cell] or not fits(board, cell, digit):
                return None
            reason = reason_for(board, cell, digit) or "guess"
            if self.thought == "reasons" and reason == "guess" and has_reason(board):
                return None
            placements.append(Placement(cell, digit, reason))
            board[cell] = digit
        return self._turn(placements)

    def symmetries(self) -> tuple[Symmetry, ...]:
        """Return exchanges of digits: all 24 of four digits, 48 of nine.

        Those of rows, columns and bands are left out: the images of a solution would place digits
        in an order that neither the expert nor the policy has.
        """
        return _symmetries(self.size)

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        """Return the share of a thought's statements that hold: each placement, and each reason."""
        held = self._judge(thought.split(" "))
        return StatementScore(sum(held), len(held)).share

    def vocabulary(self) -> Iterator[str]:
        """List parts of the grid, candidates, words of a thought and lines of the instruction."""
        for line in self.instruction.split("\n"):
            yield from (line + "\n", line)
        yield from words.row_pieces(self.size)
        if self.observation == "grid_candidates":
            yield from words.candidate_pieces(self.size)
        yield from words.thought_pieces()


def _is_reason(board: Sequence[int], cell: int, digit: int, reason: str) -> bool:
    """Return whether a word is a true reason for a digit that is right."""
    if reason == "guess":
        return not has_reason(board)
    return any(reason == known and holds_by(board, cell, digit, known) for known in REASONS[:4])


@lru_cache(maxsize=4)
def _symmetries(size: int) -> tuple[Symmetry, ...]:
    return tuple(_symmetry(size, each) for each in digit_exchanges(size))


def _symmetry(size: int, each: GridSymmetry) -> Symmetry:
    def image(state: Mapping[str, Any]) -> dict[str, Any]:
        grids = {key: list(each.image(state[key])) for key in ("givens", "board")}
        return {**state, **grids}

    def action_image(name: str) -> str:
        cell, digit = words.actions_by_name(size)[name]
        return words.action_name(each.cells[cell], each.digits[digit], size)

    return Symmetry(image, action_image)
