"""Pictures of frozen lakes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import Picture
from ragen_pl.envs.picture import CellDrawing, Color, Point, middle_of

_SEAM: Color = (190, 214, 229)
_ICE: Color = (222, 238, 247)
_GLINT: Color = (246, 251, 254)
_RIM: Color = (122, 160, 186)
_WATER: Color = (33, 66, 104)
_POLE: Color = (84, 72, 62)
_FLAG: Color = (211, 84, 76)
_MOUND: Color = (104, 168, 96)
_PLAYER: Color = (52, 120, 196)
_PLAYER_EDGE: Color = (27, 71, 125)
_EYE: Color = (255, 255, 255)


def draw_lake(state: Mapping[str, Any]) -> Picture:
    """Draw what ``FrozenLake.get_state`` returns; a player in a hole is half under water."""
    size, holes = state["size"], set(state["holes"])
    drawing = CellDrawing(size, size, _SEAM)
    for cell in range(size * size):
        row, column = middle_of(cell, size)
        drawing.box((row, column), 0.47, _ICE, rounding=0.06)
        if cell in holes:
            drawing.disc((row, column), 0.38, _RIM)
            drawing.disc((row, column), 0.33, _WATER)
        else:
            drawing.line((row - 0.28, column - 0.14), (row - 0.14, column - 0.28), 0.06, _GLINT)
            drawing.line((row + 0.10, column + 0.30), (row + 0.30, column + 0.10), 0.06, _GLINT)
    _draw_goal(drawing, middle_of(state["goal"], size))
    row, column = middle_of(state["player"], size)
    # Beside the flag rather than in front of it.
    aside = 0.12 if state["player"] == state["goal"] else 0.0
    _draw_player(drawing, (row + aside, column + aside), state["player"] in holes)
    return drawing.picture()


def _draw_goal(drawing: CellDrawing, place: Point) -> None:
    row, column = place
    drawing.disc(place, 0.38, _MOUND)
    drawing.line((row + 0.26, column - 0.16), (row - 0.32, column - 0.16), 0.07, _POLE)
    drawing.box((row - 0.20, column + 0.02), 0.14, _FLAG)


def _draw_player(drawing: CellDrawing, place: Point, in_hole: bool) -> None:
    row, column = place
    drawing.disc(place, 0.25, _PLAYER_EDGE)
    drawing.disc(place, 0.20, _PLAYER)
    for side in (-0.07, 0.07):
        drawing.disc((row - 0.04, column + side), 0.045, _EYE)
    if in_hole:
        drawing.line((row + 0.14, column - 0.18), (row + 0.14, column + 0.18), 0.18, _WATER)
