"""The Echo Trap alarm: its level over the iterations, and the signs behind it."""

from __future__ import annotations

from ragen_pl.report.charts.chart import (
    Chart,
    Trace,
    label,
    last_iteration,
    marked_warm_start,
    thinned,
)
from ragen_pl.report.run_data import RunData

LEVELS = ("green", "amber", "red")


def level_name(value: float) -> str:
    """Name a logged ``collapse/level``."""
    return LEVELS[min(2, max(0, round(value)))]


def alarm_chart(run: RunData) -> Chart | None:
    """Draw the alarm's level over iterations as one band, each iteration with its reason."""
    curve = run.curves.get("collapse/level")
    if curve is None:
        return None
    reasons = {event.iteration: event.reason for event in run.alarm}
    steps, levels = curve.iterations, [level_name(value) for value in curve.values]
    bars: list[Trace] = []
    for name in LEVELS:
        at = [step for step, level in zip(steps, levels, strict=True) if level == name]
        if at:
            bars.append(
                {
                    "name": name,
                    "type": "bar",
                    "x": at,
                    "y": [1] * len(at),
                    "width": 1,
                    "text": [label(_wrapped(reasons.get(step, ""))) for step in at],
                    "textposition": "none",
                    "meta": {"tone": name, "kind": "alarm"},
                }
            )
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "yaxis": {"visible": False, "fixedrange": True, "range": [0, 1]},
        "xaxis": {"range": [0, last_iteration(run) + 1]},
    }
    return Chart("alarm", "Alarm", "", tuple(bars), layout)


def sign_charts(run: RunData) -> Chart | None:
    """Draw the indicators behind the alarm, relative to their baselines."""
    traces: list[Trace] = []
    names = [
        name for name in run.curves if name.startswith("collapse/") and name.endswith("_ratio")
    ]
    for tone, name in enumerate(names):
        shown = name.removeprefix("collapse/").removesuffix("_ratio").replace("_", " ")
        x, y = thinned(run.curves[name])
        traces.append(
            {
                "name": shown,
                "x": x,
                "y": y,
                "mode": "lines",
                "meta": {"tone": tone, "kind": "line"},
            }
        )
    if not traces:
        return None
    layout = {
        "yaxis": {"title": {"text": "of baseline"}, "rangemode": "tozero"}
    } | marked_warm_start(run)
    text = (
        "Smoothed indicators relative to the run's first RL iterations, valid format and success "
        "relative to their best. Near 1, or falling while success rises, is healthy."
    )
    return Chart("signs", "Signs behind the alarm", text, tuple(traces), layout)


def _wrapped(text: str) -> str:
    """Cut a reason to the length of a hover text."""
    return text if len(text) < 160 else text[:157] + "…"
