"""Pictures of Sokoban rooms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragen_pl.envs.picture import (
    Box,
    Color,
    Disc,
    Drawing,
    Line,
    Point,
    Ring,
    Shape,
    middle_of,
)

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


def draw_room(state: Mapping[str, Any]) -> Drawing:
    """Draw what ``Sokoban.get_state`` returns; a box on a target is green."""
    size, targets = state["size"], set(state["targets"])
    walls = [middle_of(cell, size) for cell in state["walls"]]
    floor = [middle_of(cell, size) for cell in range(size * size) if cell not in state["walls"]]
    shapes: list[Shape] = [Box(place, 0.485, _FLOOR) for place in floor]
    shapes += [Box(place, 0.5, _WALL) for place in walls]
    shapes += [Box((row - 0.03, column), 0.43, _WALL_TOP, rounding=0.06) for row, column in walls]
    for place in (middle_of(cell, size) for cell in targets):
        shapes += [Ring(place, 0.37, 0.08, _TARGET), Disc(place, 0.10, _TARGET)]
    for cell in state["boxes"]:
        shapes += _box(middle_of(cell, size), cell in targets)
    shapes += _player(middle_of(state["player"], size))
    return Drawing(size, size, _SEAM, tuple(shapes))


def _box(place: Point, on_target: bool) -> Iterator[Shape]:
    face, edge = (_SOLVED, _SOLVED_EDGE) if on_target else (_CRATE, _CRATE_EDGE)
    yield Box(place, 0.40, edge, rounding=0.08)
    yield Box(place, 0.33, face, rounding=0.04)
    row, column = place
    for side in (-1, 1):
        start, end = (row - 0.24, column - side * 0.24), (row + 0.24, column + side * 0.24)
        yield Line(start, end, 0.09, edge)


def _player(place: Point) -> Iterator[Shape]:
    # Smaller than a target's ring, so that a player on a target shows both.
    yield Disc(place, 0.28, _PLAYER_EDGE)
    yield Disc(place, 0.23, _PLAYER)
    for side in (-0.08, 0.08):
        yield Disc((place[0] - 0.04, place[1] + side), 0.05, _EYE)
