"""A figure with its words, and the traces it is drawn with."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ragen_pl.report.recorded_curves import Curve
from ragen_pl.report.run_data import RunData
from ragen_pl.runtime.visible_text import visible

Trace = dict[str, Any]

MAX_POINTS = 600
"""Points of a curve that are drawn; longer curves are averaged."""
_SMOOTHING = 0.8
_MIN_SMOOTHED = 30
"""Points from which on a curve is drawn smoothed, over its raw points."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure with its words."""

    key: str
    title: str
    text: str
    """What is shown and how to read it."""
    traces: tuple[Trace, ...]
    layout: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "key": self.key,
            "title": self.title,
            "text": self.text,
            "traces": list(self.traces),
            "layout": dict(self.layout),
        }


def line(curve: Curve, name: str, tone: int | str) -> list[Trace]:
    """Draw a curve: smoothed over its faint raw points where there are many."""
    x, y = thinned(curve)
    shown = label(name)
    if len(x) < _MIN_SMOOTHED:
        mode = "lines+markers" if len(x) < 12 else "lines"
        return [
            {"name": shown, "x": x, "y": y, "mode": mode, "meta": {"tone": tone, "kind": "line"}}
        ]
    smooth, mean = [], y[0]
    for value in y:
        mean += (1 - _SMOOTHING) * (value - mean)
        smooth.append(rounded(mean))
    return [
        {"name": shown, "x": x, "y": y, "mode": "lines", "meta": {"tone": tone, "kind": "faint"}},
        {
            "name": shown,
            "x": x,
            "y": smooth,
            "customdata": y,
            "mode": "lines",
            "meta": {"tone": tone, "kind": "line"},
        },
    ]


def band(x: Sequence[int], ends: Sequence[tuple[float, float]], tone: int) -> Trace:
    """Draw the intervals of a curve as an area."""
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    return {
        "name": "95 % interval",
        "x": [*x, *reversed(x)],
        "y": [rounded(value) for value in (*highs, *reversed(lows))],
        "mode": "lines",
        "meta": {"tone": tone, "kind": "band"},
    }


def thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """Return at most ``MAX_POINTS`` points: means of neighbors where there are more."""
    size = max(1, math.ceil(len(curve.values) / MAX_POINTS))
    starts = range(0, len(curve.values), size)
    x = [float(curve.iterations[min(s + size, len(curve.values)) - 1]) for s in starts]
    y = [rounded(fmean(curve.values[s : s + size])) for s in starts]
    return x, y


def rounded(value: float) -> float:
    """Return a value with the digits that a chart can show."""
    return float(f"{value:.5g}")


def label(text: str) -> str:
    """Return a text for Plotly, which would read tags in it."""
    return html.escape(visible(text), quote=False)


def last_iteration(run: RunData) -> int:
    """Return the last iteration with a metric."""
    return max((curve.iterations[-1] for curve in run.curves.values()), default=1)


def marked_warm_start(run: RunData) -> dict[str, Any]:
    """Return the x-axis, on which the iterations of the warm start are marked."""
    count = 0 if run.totals is None else run.totals.warm_start_iterations
    layout: dict[str, Any] = {"xaxis": {"range": [0, last_iteration(run) * 1.01]}}
    if count:
        layout["shapes"] = [
            {
                "type": "rect",
                "xref": "x",
                "yref": "paper",
                "x0": 0,
                "x1": count,
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "name": "warm start",
            }
        ]
    return layout
