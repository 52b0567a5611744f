"""Flat shapes on a grid of cells, drawn with Pillow."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from ragen_pl.envs.base import Picture

Color = tuple[int, int, int]
Point = tuple[float, float]
"""(row, column) in cells: (0.5, 0.5) is the middle of the first cell."""

CELL = 32
"""Pixels along one side of a cell."""
_SUPERSAMPLING = 3
"""Pixels drawn per pixel and axis; averaging them smooths the edges."""
_UNIT = CELL * _SUPERSAMPLING


class CellDrawing:
    """A picture of ``rows`` by ``columns`` cells; positions and lengths are in cells."""

    def __init__(self, rows: int, columns: int, background: Color) -> None:
        self._image = Image.new("RGB", (columns * _UNIT, rows * _UNIT), background)
        self._draw = ImageDraw.Draw(self._image)

    def box(self, center: Point, half: float, color: Color, rounding: float = 0.0) -> None:
        """Fill a square with sides of 2 * ``half`` and rounded corners."""
        self._draw.rounded_rectangle(_bounds(center, half), rounding * _UNIT, fill=color)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        """Fill a disc."""
        self._draw.ellipse(_bounds(center, radius), fill=color)

    def ring(self, center: Point, radius: float, width: float, color: Color) -> None:
        """Draw a circle with a line of ``width``; ``radius`` is that of its outer edge."""
        self._draw.ellipse(_bounds(center, radius), outline=color, width=round(width * _UNIT))

    def line(self, start: Point, end: Point, width: float, color: Color) -> None:
        """Draw a straight line with round ends."""
        ends = [(column * _UNIT, row * _UNIT) for row, column in (start, end)]
        self._draw.line(ends, fill=color, width=round(width * _UNIT))
        for point in (start, end):
            self.disc(point, width / 2, color)

    def picture(self) -> Picture:
        """Return the RGB array."""
        return np.array(self._image.reduce(_SUPERSAMPLING))


def _bounds(center: Point, half: float) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom in drawn pixels, the last two inclusive as in Pillow."""
    row, column = center[0] * _UNIT, center[1] * _UNIT
    reach = half * _UNIT
    return column - reach, row - reach, column + reach - 1, row + reach - 1


def middle_of(cell: int, size: int) -> Point:
    """Return the middle of a cell, which is numbered row by row."""
    return cell // size + 0.5, cell % size + 0.5
