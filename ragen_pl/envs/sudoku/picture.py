"""Pictures of Sudoku grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragen_pl.envs.picture import Box, Color, Drawing, Line, Point, Shape, middle_of
from ragen_pl.envs.sudoku.grid import layout

_SEAM: Color = (148, 156, 168)
_LIGHT: Color = (250, 248, 243)
_SHADED: Color = (232, 228, 218)
_GIVEN: Color = (38, 42, 50)
_PLACED: Color = (52, 120, 196)
_WIDTH, _HEIGHT, _STROKE = 0.14, 0.27, 0.08
"""Half the width and half the height of a digit, and the width of its strokes."""
_ENDS: dict[str, tuple[Point, Point]] = {
    "top": ((-1, -1), (-1, 1)),
    "middle": ((0, -1), (0, 1)),
    "bottom": ((1, -1), (1, 1)),
    "upper left": ((-1, -1), (0, -1)),
    "upper right": ((-1, 1), (0, 1)),
    "lower left": ((0, -1), (1, -1)),
    "lower right": ((0, 1), (1, 1)),
}
"""Strokes of a seven-segment display, in half widths and half heights."""
_WITHOUT: dict[int, tuple[str, ...]] = {
    1: ("top", "middle", "bottom", "upper left", "lower left"),
    2: ("upper left", "lower right"),
    3: ("upper left", "lower left"),
    4: ("top", "bottom", "lower left"),
    5: ("upper right", "lower left"),
    6: ("upper right",),
    7: ("middle", "bottom", "upper left", "lower left"),
    8: (),
    9: ("lower left",),
}
"""Strokes that a digit lacks."""


def draw_grid(state: Mapping[str, Any]) -> Drawing:
    """Draw what ``Sudoku.get_state`` returns; the digits that were placed are blue."""
    of = layout(state["size"])
    shapes: list[Shape] = []
    for cell, (digit, given) in enumerate(zip(state["board"], state["givens"], strict=True)):
        place, box = middle_of(cell, of.size), of.units_of[cell][2]
        is_shaded = (box // of.box + box) % 2 if of.box % 2 == 0 else box % 2
        shapes.append(Box(place, 0.48, _SHADED if is_shaded else _LIGHT))
        if digit:
            shapes += _digit(place, digit, _GIVEN if given else _PLACED)
    return Drawing(of.size, of.size, _SEAM, tuple(shapes))


def _digit(place: Point, digit: int, color: Color) -> Iterator[Shape]:
    for name, ends in _ENDS.items():
        if name not in _WITHOUT[digit]:
            start, end = ((place[0] + _HEIGHT * y, place[1] + _WIDTH * x) for y, x in ends)
            yield Line(start, end, _STROKE, color)
