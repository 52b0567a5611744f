"""Draw a bandit's two arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import Picture
from ragen_pl.envs.canvas import Canvas, Color, Point

_TABLE: Color = (240, 234, 222)
_CHOSEN: Color = (255, 219, 120)
_SAFE: Color = (66, 122, 189)
_RISKY: Color = (201, 76, 70)
_PANE: Color = (250, 248, 243)
_DARK: Color = (52, 60, 74)
_LEVER: Color = (120, 128, 140)
_COIN: Color = (238, 180, 52)
_COIN_EDGE: Color = (176, 124, 22)


def draw_arms(state: Mapping[str, Any]) -> Picture:
    """Draw what ``Bandit.get_state`` returns: the low arm is blue, the high one red; the chosen
    one stands in light and its tray holds a coin as large as the payoff.
    """
    canvas = Canvas(4, 6, _TABLE)
    for index, name in enumerate(state["arms"]):
        chosen = name == state["choice"]
        color = _SAFE if name == state["low"] else _RISKY
        middle = (2.0, 1.45 + 3.0 * index)
        if chosen:
            canvas.box(middle, 1.45, _CHOSEN, rounding=0.3)
        _draw_machine(canvas, middle, color, pulled=chosen)
        if chosen and state["reward"] > 0:
            # The area, not the radius, stands for the amount.
            radius = 0.30 * max(float(state["reward"]) ** 0.5, 0.5)
            tray = (middle[0] + 0.66, middle[1] - 0.12)
            canvas.disc(tray, radius, _COIN_EDGE)
            canvas.disc(tray, radius * 0.75, _COIN)
    return canvas.picture()


def _draw_machine(canvas: Canvas, middle: Point, color: Color, *, pulled: bool) -> None:
    row, column = middle
    pivot = (row + 0.05, column + 0.90)
    knob = (row + (0.65 if pulled else -0.65), column + 1.12)
    canvas.line(pivot, knob, 0.12, _LEVER)
    canvas.disc(knob, 0.17, color)
    canvas.box((row, column - 0.12), 1.05, _DARK, rounding=0.22)
    canvas.box((row, column - 0.12), 0.97, color, rounding=0.16)
    for offset in (-0.56, 0.0, 0.56):
        place = (row - 0.35, column - 0.12 + offset)
        canvas.box(place, 0.25, _DARK, rounding=0.06)
        canvas.box(place, 0.21, _PANE, rounding=0.04)
        canvas.disc(place, 0.10, color)
    canvas.line((row + 0.66, column - 0.62), (row + 0.66, column + 0.38), 0.46, _DARK)
