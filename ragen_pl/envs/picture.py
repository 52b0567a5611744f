"""Drawings of flat shapes on a grid of cells, as pixels and as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Picture = npt.NDArray[np.uint8]
"""(height, width, 3) RGB."""
Color = tuple[int, int, int]
Point = tuple[float, float]
"""(row, column) in cells: (0.5, 0.5) is the middle of the first cell."""

CELL = 32
"""Pixels along one side of a cell."""
MAX_CELLS = 2_500
"""Maximum cells of a drawing."""
_SUPERSAMPLING = 3
"""Pixels drawn per pixel and axis; averaging them smooths the edges."""
_UNIT = CELL * _SUPERSAMPLING
_SVG_UNIT = 100
"""SVG units along one side of a cell; coordinates are rounded to whole ones."""


@dataclass(frozen=True, slots=True)
class Box:
    """A filled square with sides of 2 * ``half`` and rounded corners."""

    center: Point
    half: float
    color: Color
    rounding: float = 0.0


@dataclass(frozen=True, slots=True)
class Disc:
    """A filled disc."""

    center: Point
    radius: float
    color: Color


@dataclass(frozen=True, slots=True)
class Ring:
    """A circle with a line of ``width``; ``radius`` is that of its outer edge."""

    center: Point
    radius: float
    width: float
    color: Color


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line with round ends."""

    start: Point
    end: Point
    width: float
    color: Color


Shape = Box | Disc | Ring | Line


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on ``rows`` by ``columns`` cells, later ones over earlier ones.

    Positions and lengths are in cells. Both outputs come from the same shapes.
    """

    rows: int
    columns: int
    background: Color
    shapes: tuple[Shape, ...]

    def picture(self) -> Picture:
        """Return the drawing as an RGB array of ``CELL`` pixels per cell."""
        size = self.columns * _UNIT, self.rows * _UNIT
        image = Image.new("RGB", size, self.background)
        canvas = ImageDraw.Draw(image)
        for shape in self.shapes:
            _paint(canvas, shape)
        return np.array(image.reduce(_SUPERSAMPLING))

    def svg(self) -> str:
        """Return the drawing as one SVG element without a size of its own, ids, styles or scripts.

        It has numbers and colors only, no text of the state. Neighboring shapes of equal color and
        line are one path: a box is a filled path whose line rounds its corners, a disc is a line of
        no length with round ends.
        """
        width, height = self.columns * _SVG_UNIT, self.rows * _SVG_UNIT
        paths = (
            f"<path {style} d='{''.join(data for _, data in strokes)}'/>"
            for style, strokes in groupby(map(_stroke, self.shapes), key=lambda stroke: stroke[0])
        )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' fill='none' "
            "stroke-linecap='round' stroke-linejoin='round'>"
            f"<path fill='{_hex(self.background)}' d='M0 0h{width}v{height}h-{width}z'/>"
            f"{''.join(paths)}</svg>"
        )


def _paint(canvas: ImageDraw.ImageDraw, shape: Shape) -> None:
    """Draw a shape with Pillow."""
    match shape:
        case Box(center, half, color, rounding):
            canvas.rounded_rectangle(_bounds(center, half), rounding * _UNIT, fill=color)
        case Disc(center, radius, color):
            canvas.ellipse(_bounds(center, radius), fill=color)
        case Ring(center, radius, width, color):
            canvas.ellipse(_bounds(center, radius), outline=color, width=round(width * _UNIT))
        case Line(start, end, width, color):
            ends = [(column * _UNIT, row * _UNIT) for row, column in (start, end)]
            canvas.line(ends, fill=color, width=round(width * _UNIT))
            for point in (start, end):
                canvas.ellipse(_bounds(point, width / 2), fill=color)


def _bounds(center: Point, half: float) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom in drawn pixels, the last two inclusive as in Pillow."""
    row, column = center[0] * _UNIT, center[1] * _UNIT
    reach = half * _UNIT
    return column - reach, row - reach, column + reach - 1, row + reach - 1


def _stroke(shape: Shape) -> tuple[str, str]:
    """Return a shape's SVG attributes and its path data."""
    color, width = _hex(shape.color), 0.0
    match shape:
        case Box(center, half, _, rounding):
            inner = half - rounding
            side = _number(2 * inner)
            data = f"{_move((center[0] - inner, center[1] - inner))}h{side}v{side}h-{side}z"
            line = f" stroke='{color}' stroke-width='{_number(2 * rounding)}'" if rounding else ""
            return f"fill='{color}'{line}", data
        case Disc(center, radius, _):
            width, data = 2 * radius, f"{_move(center)}h0"
        case Ring(center, radius, width, _):
            middle = radius - width / 2
            r, d = _number(middle), _number(2 * middle)
            start = _move((center[0], center[1] - middle))
            data = f"{start}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0"
        case Line(start_point, (row, column), width, _):
            data = f"{_move(start_point)}L{_number(column)} {_number(row)}"
    return f"stroke='{color}' stroke-width='{_number(width)}'", data


def _move(point: Point) -> str:
    row, column = point
    return f"M{_number(column)} {_number(row)}"


def _number(cells: float) -> str:
    """Write a length in SVG units."""
    return str(round(cells * _SVG_UNIT))


def _hex(color: Color) -> str:
    return "#" + bytes(color).hex()


def middle_of(cell: int, size: int) -> Point:
    """Return the middle of a cell, which is numbered row by row."""
    return cell // size + 0.5, cell % size + 0.5


def filmstrip(drawings: Sequence[Drawing], frames_per_row: int = 8) -> Picture:
    """Return drawings side by side in reading order, on white, with a gap of a quarter cell."""
    pictures = [drawing.picture() for drawing in drawings]
    gap = CELL // 4
    height = max(picture.shape[0] for picture in pictures) + gap
    width = max(picture.shape[1] for picture in pictures) + gap
    across = min(frames_per_row, len(pictures))
    down = math.ceil(len(pictures) / across)
    strip = np.full((down * height + gap, across * width + gap, 3), 255, np.uint8)
    for place, picture in enumerate(pictures):
        top, left = gap + place // across * height, gap + place % across * width
        strip[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return strip
