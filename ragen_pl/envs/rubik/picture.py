"""Pictures of the 2×2×2 cube."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.picture import Box, Color, Drawing, Shape
from ragen_pl.envs.rubik.text import net_rows

_TABLE: Color = (240, 234, 222)
_PLASTIC: Color = (38, 42, 50)
_STICKERS: dict[str, Color] = {
    "W": (250, 250, 247),
    "R": (196, 50, 46),
    "G": (56, 142, 84),
    "Y": (244, 205, 62),
    "O": (236, 134, 44),
    "B": (45, 98, 178),
}


def draw_cube(state: Mapping[str, Any]) -> Drawing:
    """Draw what ``Rubik.get_state`` returns as the unfolded net."""
    rows = net_rows(state["stickers"])
    shapes: list[Shape] = []
    for row, letters in enumerate(rows):
        for column, letter in enumerate(letters):
            if letter in _STICKERS:
                place = (row + 0.5, column + 0.5)
                shapes.append(Box(place, 0.5, _PLASTIC))
                shapes.append(Box(place, 0.43, _STICKERS[letter], rounding=0.1))
    return Drawing(len(rows), max(map(len, rows)), _TABLE, tuple(shapes))
