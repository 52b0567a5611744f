"""Draw flat shapes on a grid of cells with numpy alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ragen_pl.envs.base import Picture

Color = tuple[int, int, int]
Point = tuple[float, float]

CELL = 32
"""Pixels along one side of a cell."""
_SAMPLES = 3
"""Samples per pixel and axis: shapes are drawn large and averaged, which smooths their edges."""


class Canvas:
    """Hold a picture of ``rows`` by ``columns`` cells.

    Shapes are placed by (row, column) in cells: (0.5, 0.5) is the middle of the first cell.
    """

    def __init__(self, rows: int, columns: int, background: Color) -> None:
        resolution = CELL * _SAMPLES
        self._pixels = np.empty((rows * resolution, columns * resolution, 3), np.uint8)
        self._pixels[:] = background
        self._resolution = resolution

    def box(self, center: Point, half: float, color: Color, rounding: float = 0.0) -> None:
        """Fill a square, its corners rounded."""
        rows, columns = self._window(center, half)
        straight = half - rounding
        beyond = np.hypot(
            np.maximum(np.abs(rows - center[0]) - straight, 0.0),
            np.maximum(np.abs(columns - center[1]) - straight, 0.0),
        )
        self._fill(center, half, beyond <= max(rounding, 1e-6), color)

    def disc(self, center: Point, radius: float, color: Color) -> None:
        """Fill a disc."""
        rows, columns = self._window(center, radius)
        distance = np.hypot(rows - center[0], columns - center[1])
        self._fill(center, radius, distance <= radius, color)

    def ring(self, center: Point, radius: float, width: float, color: Color) -> None:
        """Draw a circle of a certain width; ``radius`` is its outer edge."""
        rows, columns = self._window(center, radius)
        distance = np.hypot(rows - center[0], columns - center[1])
        self._fill(center, radius, (distance <= radius) & (distance >= radius - width), color)

    def line(self, start: Point, end: Point, width: float, color: Color) -> None:
        """Draw a straight line with round ends."""
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        along = (end[0] - start[0], end[1] - start[1])
        length = max(float(np.hypot(*along)), 1e-6)
        half = length / 2 + width
        rows, columns = self._window(middle, half)
        down, right = rows - start[0], columns - start[1]
        share = np.clip((down * along[0] + right * along[1]) / length**2, 0.0, 1.0)
        distance = np.hypot(down - share * along[0], right - share * along[1])
        self._fill(middle, half, distance <= width / 2, color)

    def picture(self) -> Picture:
        """Return the RGB array."""
        # Adding strided slices is several times faster than a mean over reshaped blocks.
        steps = range(_SAMPLES)
        rows = sum(self._pixels[step::_SAMPLES].astype(np.uint16) for step in steps)
        total = sum(np.asarray(rows)[:, step::_SAMPLES] for step in steps)
        return (np.asarray(total) // _SAMPLES**2).astype(np.uint8)

    def _bounds(self, center: Point, half: float) -> tuple[slice, slice]:
        """Return the part of the canvas that a shape can touch."""
        parts = []
        for middle, limit in zip(center, self._pixels.shape[:2], strict=True):
            first = int(np.floor((middle - half) * self._resolution))
            last = int(np.ceil((middle + half) * self._resolution))
            parts.append(slice(max(first, 0), min(last, limit)))
        return parts[0], parts[1]

    def _window(
        self, center: Point, half: float
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        rows, columns = self._bounds(center, half)
        down = (np.arange(rows.start, rows.stop) + 0.5) / self._resolution
        right = (np.arange(columns.start, columns.stop) + 0.5) / self._resolution
        return down[:, None], right[None, :]

    def _fill(
        self, center: Point, half: float, inside: npt.NDArray[np.bool_], color: Color
    ) -> None:
        self._pixels[self._bounds(center, half)][inside] = color


def middle_of(cell: int, size: int) -> Point:
    """Return the middle of a cell numbered row by row."""
    return cell // size + 0.5, cell % size + 0.5
