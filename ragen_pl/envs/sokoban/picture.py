"""Pictures of Sokoban rooms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import Picture
from ragen_pl.envs.picture import CellDrawing, Color, Point, middle_of

_SEAM: Color = (222, 214, 199)
_FLOOR: Color = (240, 234, 222)
_WALL: Color = (74, 85, 104)
_WALL_TOP: Color = (96, 109, 131)
_TARGET: Color = (211, 84, 76)
_CRATE: Color = (201, 143, 74)
_CRATE_EDGE: Color = (143, 94, 41)
_SOLVED: Color = (104, 168, 96)
_SOLVED_EDGE: Color = (58, 112, 55)
_PLAYER: Color = (52, 120, 196)
_PLAYER_EDGE: Color = (27, 71, 125)
_EYE: Color = (255, 255, 255)


def draw_room(state: Mapping[str, Any]) -> Picture:
    """Draw what ``Sokoban.get_state`` returns; a box on a target is green."""
    size = state["size"]
    drawing = CellDrawing(size, size, _SEAM)
    walls, targets = set(state["walls"]), set(state["targets"])
    for cell in range(size * size):
        place = middle_of(cell, size)
        if cell in walls:
            drawing.box(place, 0.5, _WALL)
            drawing.box((place[0] - 0.03, place[1]), 0.43, _WALL_TOP, rounding=0.06)
        else:
            drawing.box(place, 0.485, _FLOOR)
    for cell in targets:
        place = middle_of(cell, size)
        drawing.ring(place, 0.37, 0.08, _TARGET)
        drawing.disc(place, 0.10, _TARGET)
    for cell in state["boxes"]:
        _draw_box(drawing, middle_of(cell, size), cell in targets)
    _draw_player(drawing, middle_of(state["player"], size))
    return drawing.picture()


def _draw_box(drawing: CellDrawing, place: Point, on_target: bool) -> None:
    face, edge = (_SOLVED, _SOLVED_EDGE) if on_target else (_CRATE, _CRATE_EDGE)
    drawing.box(place, 0.40, edge, rounding=0.08)
    drawing.box(place, 0.33, face, rounding=0.04)
    row, column = place
    for side in (-1, 1):
        start, end = (row - 0.24, column - side * 0.24), (row + 0.24, column + side * 0.24)
        drawing.line(start, end, 0.09, edge)


def _draw_player(drawing: CellDrawing, place: Point) -> None:
    # Smaller than a target's ring, so that a player on a target shows both.
    drawing.disc(place, 0.28, _PLAYER_EDGE)
    drawing.disc(place, 0.23, _PLAYER)
    for side in (-0.08, 0.08):
        drawing.disc((place[0] - 0.04, place[1] + side), 0.05, _EYE)
