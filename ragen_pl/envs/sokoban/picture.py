"""Draw a Sokoban room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import Picture
from ragen_pl.envs.canvas import Canvas, Color, Point, middle_of

_SEAM: Color = (222, 214, 199)
_FLOOR: Color = (240, 234, 222)
_WALL: Color = (74, 85, 104)
_WALL_TOP: Color = (96, 109, 131)
_TARGET: Color = (211, 84, 76)
_CRATE: Color = (201, 143, 74)
_CRATE_EDGE: Color = (143, 94, 41)
_HOME: Color = (104, 168, 96)
_HOME_EDGE: Color = (58, 112, 55)
_PLAYER: Color = (52, 120, 196)
_PLAYER_EDGE: Color = (27, 71, 125)
_EYE: Color = (255, 255, 255)


def draw_room_state(state: Mapping[str, Any]) -> Picture:
    """Draw what ``Sokoban.get_state`` returns; a box on a target is green."""
    size = state["size"]
    canvas = Canvas(size, size, _SEAM)
    walls, targets = set(state["walls"]), set(state["targets"])
    for cell in range(size * size):
        place = middle_of(cell, size)
        if cell in walls:
            canvas.box(place, 0.5, _WALL)
            canvas.box((place[0] - 0.03, place[1]), 0.43, _WALL_TOP, rounding=0.06)
        else:
            canvas.box(place, 0.485, _FLOOR)
    for cell in targets:
        place = middle_of(cell, size)
        canvas.ring(place, 0.37, 0.08, _TARGET)
        canvas.disc(place, 0.10, _TARGET)
    for cell in state["boxes"]:
        _draw_box(canvas, middle_of(cell, size), cell in targets)
    _draw_player(canvas, middle_of(state["player"], size))
    return canvas.picture()


def _draw_box(canvas: Canvas, place: Point, home: bool) -> None:
    face, edge = (_HOME, _HOME_EDGE) if home else (_CRATE, _CRATE_EDGE)
    canvas.box(place, 0.40, edge, rounding=0.08)
    canvas.box(place, 0.33, face, rounding=0.04)
    row, column = place
    for side in (-1, 1):
        start, end = (row - 0.24, column - side * 0.24), (row + 0.24, column + side * 0.24)
        canvas.line(start, end, 0.09, edge)


def _draw_player(canvas: Canvas, place: Point) -> None:
    # Smaller than a target's ring, so that a player on a target shows both.
    canvas.disc(place, 0.28, _PLAYER_EDGE)
    canvas.disc(place, 0.23, _PLAYER)
    for side in (-0.08, 0.08):
        canvas.disc((place[0] - 0.04, place[1] + side), 0.05, _EYE)
