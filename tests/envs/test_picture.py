"""The two outputs of one drawing agree, and the SVG is small and harmless."""

from __future__ import annotations

import math
import random
import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.picture import (
    CELL,
    Box,
    Disc,
    Drawing,
    Line,
    Ring,
    filmstrip,
)

RED, BLUE, WHITE = (200, 10, 20), (0, 40, 250), (255, 255, 255)
UNIT = 100.0
"""SVG units in a cell."""
NUMBER = r"(-?\d+)"
SUBPATH = re.compile(
    rf"M{NUMBER} {NUMBER}(?:(?P<box>h{NUMBER}v{NUMBER}h-{NUMBER}z)|(?P<disc>h0)"
    rf"|(?P<line>L{NUMBER} {NUMBER})|(?P<ring>a{NUMBER} \d+ 0 1 0 {NUMBER} 0a.*? 0 1 0-\d+ 0))"
)


Painted = list[tuple[tuple[int, ...], float, list[re.Match[str]]]]
"""Color, line width and subpaths of each path."""


def parse(svg: str) -> Painted:
    """Read the paths of a drawing; nothing in them may be left unread."""
    painted = []
    for path in ElementTree.fromstring(svg):
        data = str(path.get("d"))
        found = list(SUBPATH.finditer(data))
        assert "".join(match[0] for match in found) == data
        color = path.get("fill") or str(path.get("stroke"))
        width = float(path.get("stroke-width", "0"))
        painted.append((tuple(bytes.fromhex(color[1:])), width, found))
    return painted


def color_at(painted: Painted, x: float, y: float) -> tuple[int, ...]:
    """Return the color at a point, in SVG units, by SVG's rules for filled and stroked paths."""
    for color, width, found in reversed(painted):
        if any(covers(match, width, x, y) for match in found):
            return color
    raise AssertionError("no background")


def covers(match: re.Match[str], width: float, x: float, y: float) -> bool:
    left, top = float(match[1]), float(match[2])
    if match["box"]:
        right, bottom = left + float(match[4]), top + float(match[5])
        away = max(left - x, 0, x - right), max(top - y, 0, y - bottom)
        return math.hypot(*away) <= width / 2
    if match["disc"]:
        return math.hypot(x - left, y - top) <= width / 2
    if match["line"]:
        dx, dy = float(match[9]) - left, float(match[10]) - top
        along = ((x - left) * dx + (y - top) * dy) / (dx * dx + dy * dy)
        along = min(1.0, max(0.0, along))
        return math.hypot(x - left - along * dx, y - top - along * dy) <= width / 2
    radius = float(match[12])
    return abs(math.hypot(x - left - radius, y - top) - radius) <= width / 2


def visited(env: TextEnv) -> list[dict[str, Any]]:
    """Return the states of a short random episode."""
    env.reset(seed=5)
    states, rng = [env.get_state()], random.Random(1)
    for _ in range(min(6, env.max_actions)):
        assert env.actions is not None
        _, _, terminated, truncated, _ = env.step(rng.choice(env.actions))
        states.append(env.get_state())
        if terminated or truncated:
            break
    return states


def drawings() -> list[Drawing]:
    shapes = (
        Box((0.5, 0.5), 0.4, RED, rounding=0.1),
        Ring((0.5, 1.5), 0.4, 0.1, BLUE),
        Disc((1.5, 0.5), 0.3, BLUE),
        Line((1.2, 1.2), (1.8, 1.7), 0.2, RED),
    )
    found = [Drawing(2, 2, WHITE, shapes)]
    for env in (Sokoban(), FrozenLake(), Bandit()):
        found += [drawing for state in visited(env) if (drawing := type(env)().draw(state))]
    return found


@pytest.mark.parametrize("number", range(len(drawings())))
def test_pixels_and_svg_show_the_same(number: int) -> None:
    drawing = drawings()[number]
    painted, picture, rng = parse(drawing.svg()), drawing.picture(), random.Random(number)
    compared, near = 0, (-5, -3, -1, 1, 3, 5)
    for _ in range(100):
        row, column = (rng.randrange(2, size - 2) for size in picture.shape[:2])
        x, y = ((at + 0.5) / CELL * UNIT for at in (column, row))
        around = {color_at(painted, x + dx, y + dy) for dx in near for dy in near}
        if len(around) == 1:  # away from edges, where colors mix
            assert tuple(picture[row, column].tolist()) == around.pop(), (row, column)
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake, Bandit])
def test_svg_is_compact_and_has_nothing_but_paths(kind: type[TextEnv]) -> None:
    for state in visited(kind()):
        drawing = kind().draw(state)
        assert drawing is not None
        svg = drawing.svg()
        assert len(svg) < 3000
        elements = list(ElementTree.fromstring(svg).iter())
        assert {element.tag.rpartition("}")[2] for element in elements} == {"svg", "path"}
        names = {name for element in elements for name in element.attrib}
        assert names <= {
            *("viewBox", "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin"),
            "d",
        }
        assert not any(element.text for element in elements)


def test_text_of_a_state_never_reaches_the_svg() -> None:
    arms = ["<script>alert(1)</script>", "'/><b>"]
    drawing = Bandit().draw({"arms": arms, "low": arms[0], "choice": arms[1], "reward": 1.0})
    assert "script" not in drawing.svg()
    assert "<b>" not in drawing.svg()


def test_a_filmstrip_shows_its_frames_in_reading_order() -> None:
    frames = [Drawing(1, 1, (10 * n, 0, 0), ()) for n in range(5)]
    strip = filmstrip(frames, frames_per_row=3)
    gap = CELL // 4
    assert strip.shape == (2 * (CELL + gap) + gap, 3 * (CELL + gap) + gap, 3)
    step = CELL + gap
    seen = [
        strip[gap + row * step + 1, gap + column * step + 1, 0]
        for row in (0, 1)
        for column in range(3)
    ]
    assert seen == [0, 10, 20, 30, 40, 255]
    assert np.all(strip[:gap] == 255)
