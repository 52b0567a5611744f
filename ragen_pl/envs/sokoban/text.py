"""Sokoban as text: symbols, rows, thoughts, and the pieces for a small tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple

from ragen_pl.envs.boards import cells_of, coordinate, marked_rows, spaced_pieces
from ragen_pl.envs.sokoban.search import ACTIONS, Board, Position

Vocabulary = Literal["paper", "letters"]
STUCK = "stuck"
THEN = "then"
"""The word before a thought's prediction."""


class Symbols(NamedTuple):
    """One character per kind of cell, in the order of the legend."""

    wall: str
    floor: str
    target: str
    box_on_target: str
    box: str
    player: str
    player_on_target: str


SYMBOLS: dict[str, Symbols] = {
    "paper": Symbols("#", "_", "O", "√", "X", "P", "S"),
    "letters": Symbols("W", ".", "G", "C", "B", "A", "@"),
}
"""Symbols of RAGEN's grid and of its second vocabulary (arXiv 2504.20073, appendix on
environments)."""


def legend(symbols: Symbols) -> str:
    """Return the meaning of each symbol."""
    names = (field.replace("_", " ") for field in Symbols._fields)
    return ", ".join(f"{mark} {name}" for mark, name in zip(symbols, names, strict=True))


def grid_rows(
    board: Board, player: int, boxes: int, symbols: Symbols, spaced: bool = False
) -> list[str]:
    """Return one string per row."""
    marks = [symbols.floor] * board.size**2
    for cell in cells_of(board.walls):
        marks[cell] = symbols.wall
    for cell in cells_of(board.targets):
        marks[cell] = symbols.target
    for cell in cells_of(boxes):
        marks[cell] = symbols.box_on_target if board.targets >> cell & 1 else symbols.box
    on_target = board.targets >> player & 1
    marks[player] = symbols.player_on_target if on_target else symbols.player
    return marked_rows(marks, board.size, spaced)


def coordinate_rows(board: Board, player: int, boxes: int, inner_walls: int) -> list[str]:
    """Return the state as lists of coordinates.

    Walls are listed, too. RAGEN's format leaves them out, so its text does not determine the state.
    """

    def listing(mask: int) -> str:
        return " ".join(coordinate(cell, board.size) for cell in cells_of(mask)) or "none"

    return [
        f"Board {board.size}x{board.size}",
        f"Walls {listing(inner_walls)}",
        f"Targets {listing(board.targets)}",
        f"Boxes {listing(boxes)}",
        f"Boxes on target {listing(boxes & board.targets)}",
        f"Player {coordinate(player, board.size)}",
    ]


def facts(board: Board, player: int, boxes: int, symbols: Symbols) -> tuple[str, ...]:
    """Return the positions of player, boxes and targets, the first words of a true thought."""
    words = [symbols.player + coordinate(player, board.size)]
    words += [symbols.box + coordinate(cell, board.size) for cell in cells_of(boxes)]
    words += [symbols.target + coordinate(cell, board.size) for cell in cells_of(board.targets)]
    return tuple(words)


def read_plan(thought: str, expected_facts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the plan of a thought that begins with the expected facts; None for any other text.

    ``(STUCK,)`` claims that the room cannot be solved.
    """
    words = tuple(thought.split(" "))
    plan = words[len(expected_facts) :]
    if words[: len(expected_facts)] != expected_facts:
        return None
    return plan if plan == (STUCK,) or set(plan) <= set(ACTIONS) else None


def prediction(board: Board, position: Position, symbols: Symbols) -> tuple[str, ...]:
    """Return the words of a thought about a later position: player and boxes; targets stay."""
    player, boxes = position
    return facts(board, player, boxes, symbols)[: 1 + boxes.bit_count()]


def row_pieces(size: int, num_boxes: int, symbols: Symbols, spaced: bool) -> Iterator[str]:
    """List the pieces of which all grid rows consist.

    Spaced rows are cut into cells. Otherwise, with six cells and one box, these are all legal rows;
    larger rooms have too many rows, which are cut into stretches of three inner cells; the frame
    and the newline belong to the outer ones.
    """
    if spaced:
        yield from spaced_pieces(symbols)
        return
    frame = symbols.wall * size
    yield from (frame + "\n", frame)
    inside = size - 2
    stretch = inside if size == 6 and num_boxes == 1 else 3
    for first in range(0, inside, stretch):
        length = min(stretch, inside - first)
        before = symbols.wall if first == 0 else ""
        after = symbols.wall + "\n" if first + length == inside else ""
        for cells in product(symbols, repeat=length):
            if _is_legal(cells, num_boxes, symbols):
                yield before + "".join(cells) + after


def _is_legal(cells: tuple[str, ...], num_boxes: int, symbols: Symbols) -> bool:
    count = {mark: cells.count(mark) for mark in symbols}
    boxes = count[symbols.box] + count[symbols.box_on_target]
    players = count[symbols.player] + count[symbols.player_on_target]
    targets = count[symbols.target] + count[symbols.box_on_target] + count[symbols.player_on_target]
    return players <= 1 and boxes <= num_boxes and targets <= num_boxes


def prediction_pieces(size: int, symbols: Symbols) -> Iterator[str]:
    """List the words that only a thought with a prediction has, each with the space before it."""
    yield f" {THEN}"
    for row, column in product(range(1, size - 1), repeat=2):
        yield f" {symbols.player}({row},{column})"


def thought_pieces(size: int, symbols: Symbols) -> Iterator[str]:
    """List the words of a thought, each with the space before it."""
    for row, column in product(range(1, size - 1), repeat=2):
        yield f"{symbols.player}({row},{column})"
        yield f" {symbols.box}({row},{column})"
        yield f" {symbols.target}({row},{column})"
    yield from (*ACTIONS, STUCK)
    yield from (f" {word}" for word in (*ACTIONS, STUCK))


def coordinate_pieces(size: int) -> Iterator[str]:
    """List the words of the coordinate observation."""
    yield f"Board {size}x{size}\n"
    for row, column in product(range(1, size - 1), repeat=2):
        yield f" ({row},{column})"
    yield from ("Walls", "Targets", "Boxes", "Boxes on target", "Player", " none", "\n")
