"""Where the seconds of an iteration went."""

from __future__ import annotations

import math
from statistics import fmean

from ragen_pl.report.charts.chart import MAX_POINTS, Chart, Trace, last_iteration, rounded
from ragen_pl.report.run_data import RunData

_PHASES = (
    ("warm start", 6),
    ("sample", 0),
    ("environments", 5),
    ("score and pack", 4),
    ("update", 1),
    ("evaluate and save", 3),
)


def phase_seconds(run: RunData) -> dict[str, dict[int, float]]:
    """Split the seconds of every iteration by phase.

    What the clock shows beyond the timed phases is validation, checkpoints and the logger.
    """
    warm = 0 if run.totals is None else run.totals.warm_start_iterations
    timed = {
        name: dict(zip(curve.iterations, curve.values, strict=True))
        for name, curve in run.curves.items()
        if name.startswith("time/")
    }
    phases: dict[str, dict[int, float]] = {name: {} for name, _ in _PHASES}
    for step, update in timed.get("time/update", {}).items():
        parts = {name: timed.get(name, {}).get(step, 0.0) for name in timed}
        rollout, env = parts.get("time/rollout", 0.0), parts.get("time/env", 0.0)
        score = parts.get("time/score_pass", 0.0)
        phases["warm start" if step <= warm else "update"][step] = update
        phases["sample"][step] = max(0.0, rollout - env)
        phases["environments"][step] = env
        phases["score and pack"][step] = score
        whole = run.seconds_of_iterations.get(step)
        if whole is not None:
            phases["evaluate and save"][step] = max(0.0, whole - update - rollout - score)
    return {name: values for name, values in phases.items() if any(values.values())}


def phase_chart(run: RunData) -> Chart | None:
    """Stack the seconds of the phases over iterations."""
    phases = phase_seconds(run)
    if not phases:
        return None
    tones = dict(_PHASES)
    steps = sorted({step for values in phases.values() for step in values})
    size = max(1, math.ceil(len(steps) / MAX_POINTS))
    traces: list[Trace] = []
    for name, values in phases.items():
        chunks = [steps[s : s + size] for s in range(0, len(steps), size)]
        traces.append(
            {
                "name": name,
                "type": "bar",
                "x": [chunk[-1] for chunk in chunks],
                "y": [rounded(fmean(values.get(step, 0.0) for step in chunk)) for chunk in chunks],
                "meta": {"tone": tones[name], "kind": "bar"},
            }
        )
    layout = {
        "barmode": "stack",
        "bargap": 0,
        "yaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "xaxis": {"range": [0, last_iteration(run) + 1]},
    }
    text = (
        "Seconds of every iteration. Peaks are iterations after which evaluation sets are played."
    )
    return Chart("phases", "Where the time goes", text, tuple(traces), layout)
