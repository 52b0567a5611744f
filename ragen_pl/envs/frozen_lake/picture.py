"""Pictures of frozen lakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ragen_pl.envs.picture import Box, Color, Disc, Drawing, Line, Point, Shape, middle_of

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


def draw_lake(state: Mapping[str, Any]) -> Drawing:
    """Draw what ``FrozenLake.get_state`` returns; a player in a hole is half under water."""
    size, holes = state["size"], state["holes"]
    cells = [middle_of(cell, size) for cell in range(size * size)]
    ice = [cells[cell] for cell in range(size * size) if cell not in holes]
    shapes: list[Shape] = [Box(place, 0.47, _ICE, rounding=0.06) for place in cells]
    shapes += [Disc(cells[cell], 0.38, _RIM) for cell in holes]
    shapes += [Disc(cells[cell], 0.33, _WATER) for cell in holes]
    for row, column in ice:
        upper, lower = (row - 0.28, column - 0.14), (row + 0.10, column + 0.30)
        shapes.append(Line(upper, (row - 0.14, column - 0.28), 0.06, _GLINT))
        shapes.append(Line(lower, (row + 0.30, column + 0.10), 0.06, _GLINT))
    shapes += _goal(middle_of(state["goal"], size))
    row, column = middle_of(state["player"], size)
    # Beside the flag rather than in front of it.
    aside = 0.12 if state["player"] == state["goal"] else 0.0
    shapes += _player((row + aside, column + aside), state["player"] in holes)
    return Drawing(size, size, _SEAM, tuple(shapes))


def _goal(place: Point) -> Iterator[Shape]:
    row, column = place
    yield Disc(place, 0.38, _MOUND)
    yield Line((row + 0.26, column - 0.16), (row - 0.32, column - 0.16), 0.07, _POLE)
    yield Box((row - 0.20, column + 0.02), 0.14, _FLAG)


def _player(place: Point, in_hole: bool) -> Iterator[Shape]:
    row, column = place
    yield Disc(place, 0.25, _PLAYER_EDGE)
    yield Disc(place, 0.20, _PLAYER)
    for side in (-0.07, 0.07):
        yield Disc((row - 0.04, column + side), 0.045, _EYE)
    if in_hole:
        yield Line((row + 0.14, column - 0.18), (row + 0.14, column + 0.18), 0.18, _WATER)
