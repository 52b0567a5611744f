"""The 2×2×2 cube: stickers, turns, and the symmetries of the cube, all derived from its geometry.

A cube is a text of 24 color letters: the faces U, R, F, D, L, B one after another, each read row by
row as the unfolded net shows it. It is solved if every face has one color, however the whole cube
is held.

Turns have Singmaster's names: a letter turns its face a quarter clockwise as seen from outside, a
letter with ' counterclockwise. There are twelve, all of length one (the quarter-turn metric).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from operator import itemgetter
from typing import NamedTuple

FACES = "URFDLB"
"""Upper, right, front, lower (down), left and back face."""
COLORS = "WRGYOB"
"""White, red, green, yellow, orange, blue: the solved cube's colors in the order of ``FACES``."""
ACTIONS = tuple(face + way for face in FACES for way in ("", "'"))

_Vector = tuple[int, int, int]
"""(right, up, toward the viewer)."""
_Matrix = tuple[_Vector, _Vector, _Vector]

_NORMALS: tuple[_Vector, ...] = (
    (0, 1, 0),
    (1, 0, 0),
    (0, 0, 1),
    (0, -1, 0),
    (-1, 0, 0),
    (0, 0, -1),
)
_NET: tuple[tuple[_Vector, _Vector], ...] = (
    ((1, 0, 0), (0, 0, 1)),
    ((0, 0, -1), (0, -1, 0)),
    ((1, 0, 0), (0, -1, 0)),
    ((1, 0, 0), (0, 0, -1)),
    ((0, 0, 1), (0, -1, 0)),
    ((-1, 0, 0), (0, -1, 0)),
)
"""Where each face of the net has its right and its lower side."""


class _Place(NamedTuple):
    """The place of a sticker."""

    corner: _Vector
    normal: _Vector


def _places() -> tuple[_Place, ...]:
    places = []
    for normal, (right, down) in zip(_NORMALS, _NET, strict=True):
        for a, b in product((-1, 1), repeat=2):
            corner = [n + b * r + a * d for n, r, d in zip(normal, right, down, strict=True)]
            places.append(_Place((corner[0], corner[1], corner[2]), normal))
    return tuple(places)


def _apply(matrix: _Matrix, vector: _Vector) -> _Vector:
    x, y, z = (sum(m * v for m, v in zip(row, vector, strict=True)) for row in matrix)
    return x, y, z


def _determinant(matrix: _Matrix) -> int:
    (a, b, c), (d, e, f), (g, h, i) = matrix
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def _unit(axis: int, sign: int) -> _Vector:
    x, y, z = (sign * (each == axis) for each in range(3))
    return x, y, z


def _orthogonal_matrices() -> tuple[_Matrix, ...]:
    """List the 48 symmetries of a cube, the identity first."""
    found = []
    for order in permutations(range(3)):
        for signs in product((1, -1), repeat=3):
            one, two, three = (_unit(axis, sign) for axis, sign in zip(order, signs, strict=True))
            found.append((one, two, three))
    return tuple(found)


_MATRICES = _orthogonal_matrices()


def _quarter_turn(normal: _Vector) -> _Matrix:
    """Return the rotation by a quarter, clockwise as seen from where ``normal`` points."""
    return next(
        matrix
        for matrix in _MATRICES
        if _determinant(matrix) == 1
        and _apply(matrix, normal) == normal
        and all(
            _apply(matrix, v) == _minus_cross(normal, v) for v in _NORMALS if not _dot(normal, v)
        )
    )


def _dot(a: _Vector, b: _Vector) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _minus_cross(a: _Vector, b: _Vector) -> _Vector:
    return a[2] * b[1] - a[1] * b[2], a[0] * b[2] - a[2] * b[0], a[1] * b[0] - a[0] * b[1]


_PLACES = _places()
_NUMBER = {place: number for number, place in enumerate(_PLACES)}

_Reader = Callable[[str], tuple[str, ...]]
"""The new order of a cube's stickers."""


def _reader(images: list[int]) -> _Reader:
    """Return the reader that brings the sticker at each place to the place's image."""
    return itemgetter(*[images.index(place) for place in range(len(_PLACES))])


def _turn(face: int, *, clockwise: bool) -> _Reader:
    normal = _NORMALS[face]
    matrix, images = _quarter_turn(normal), list(range(len(_PLACES)))
    for number, place in enumerate(_PLACES):
        if _dot(place.corner, normal) == 1:
            image = _NUMBER[_Place(_apply(matrix, place.corner), _apply(matrix, place.normal))]
            number, image = (number, image) if clockwise else (image, number)
            images[number] = image
    return _reader(images)


_TURNS: dict[str, _Reader] = {
    name: _turn(FACES.index(name[0]), clockwise=len(name) == 1) for name in ACTIONS
}

SOLVED = "".join(color * 4 for color in COLORS)
"""The solved cube, white above and green in front."""


def turn(cube: str, action: str) -> str:
    """Return the cube after one turn."""
    return "".join(_TURNS[action](cube))


def is_solved(cube: str) -> bool:
    """Return whether every face has one color."""
    return all(cube[first : first + 4] == cube[first] * 4 for first in range(0, 24, 4))


class CubeSymmetry(NamedTuple):
    """A rotation or reflection of the cube together with its colors; the solved cube stays."""

    stickers: _Reader
    colors: dict[int, int]
    """Image of each color, for ``str.translate``."""
    actions: dict[str, str]
    """Image of each turn; a reflection makes clockwise counterclockwise."""

    @property
    def is_rotation(self) -> bool:
        """Whether it is no reflection."""
        return len(self.actions["U"]) == 1

    def image(self, cube: str) -> str:
        """Return the image of a cube."""
        return "".join(self.stickers(cube)).translate(self.colors)


def _symmetry(matrix: _Matrix) -> CubeSymmetry:
    places = [_NUMBER[_Place(_apply(matrix, p.corner), _apply(matrix, p.normal))] for p in _PLACES]
    faces = [_NORMALS.index(_apply(matrix, normal)) for normal in _NORMALS]
    reverses = _determinant(matrix) == -1
    actions = {
        name: FACES[faces[FACES.index(name[0])]] + ("'" if (len(name) == 2) != reverses else "")
        for name in ACTIONS
    }
    colors = str.maketrans(COLORS, "".join(COLORS[image] for image in faces))
    return CubeSymmetry(_reader(places), colors, actions)


SYMMETRIES = tuple(_symmetry(matrix) for matrix in _MATRICES)
"""The 48 rotations and reflections, the identity first."""


def _corner_places(corner: _Vector) -> tuple[int, int, int]:
    """Return the places of a corner's stickers, clockwise from the upper or lower one."""
    x, y, z = corner
    normals: list[_Vector] = [(0, y, 0), (x, 0, 0), (0, 0, z)]
    if x * y * z < 0:
        normals[1:] = normals[:0:-1]
    one, two, three = (_NUMBER[_Place(corner, normal)] for normal in normals)
    return one, two, three


_CORNERS = tuple(_corner_places(corner) for corner in dict.fromkeys(p.corner for p in _PLACES))


def _read_corner(cube: str, places: tuple[int, int, int]) -> str:
    return "".join(cube[place] for place in places)


CORNER_NAMES = tuple("".join(FACES[place // 4] for place in places) for places in _CORNERS)
"""Names of the corners' places by their faces, such as URF, in the order of ``corners``."""
_CUBIES = tuple(_read_corner(SOLVED, places) for places in _CORNERS)
_TWISTS = {cubie[twist:] + cubie[:twist]: (cubie, twist) for cubie in _CUBIES for twist in range(3)}
CORNER_COLORS = tuple(_TWISTS)
"""All that a corner's colors can be, clockwise from the upper or lower one: 8 corners, 3 twists."""


def corners(cube: str) -> tuple[str, ...]:
    """Return the colors of each corner, clockwise from the upper or lower one."""
    return tuple(_read_corner(cube, places) for places in _CORNERS)


def check_cube(cube: str) -> None:
    """Check that turns of the solved cube lead to a cube.

    Raises:
        ValueError: if it has other stickers, or a corner that is twisted alone.
    """
    found = corners(cube) if len(cube) == len(SOLVED) else ()
    twists = [_TWISTS[colors] for colors in found if colors in _TWISTS]
    is_whole = {cubie for cubie, _ in twists} == set(_CUBIES)
    if not is_whole or sum(twist for _, twist in twists) % 3:
        raise ValueError(f"stickers: no turns lead from the solved cube to {cube!r}")


_FIXED = _CORNERS[CORNER_NAMES.index("DBL")]
_RECOLORINGS = {
    _read_corner(SOLVED.translate(rotation.colors), _FIXED): str.maketrans(
        SOLVED.translate(rotation.colors), SOLVED
    )
    for rotation in SYMMETRIES
    if rotation.is_rotation
}


def recolored(cube: str) -> str:
    """Return the cube in the colors with which its lower left back corner is that of ``SOLVED``.

    It is solved by the same turns. Of the 24 ways to color or to hold a cube one is left, so that
    there are 3,674,160 recolored cubes; U, R and F turns keep a cube recolored.
    """
    return cube.translate(_RECOLORINGS[_read_corner(cube, _FIXED)])


def canonical(cube: str) -> str:
    """Return the least of a cube's images, the same for all ways to hold, color or mirror it."""
    return min(recolored(symmetry.image(cube)) for symmetry in SYMMETRIES)
