"""The metrics of a run over its iterations, from the event files of its processes or the results.

Each process that works on a run writes an event file of its own. One that resumes from an earlier
checkpoint replaces what others did from there on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ragen_pl.training.run_folder import RESULTS

TENSORBOARD = "tensorboard"
_MEASURED = ("rollout/", "teacher/", "train/", "val/", "collapse/", "diagnostics/", "time/")
_PREFIXES = (*_MEASURED, "final/")
_OF_EVERY_ITERATION = "time/update"

Points = dict[str, dict[int, float]]
"""Values by metric and iteration."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over iterations; the sequences have equal lengths."""

    iterations: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass(frozen=True, slots=True)
class RecordedCurves:
    """All metrics of a run."""

    curves: Mapping[str, Curve]
    seconds_of_iterations: Mapping[int, float]
    """Seconds from the end of the iteration before to the end of an iteration, by the clock of the
    event file; the first iteration of a process is missing."""


def read_curves(run: Path, results: Mapping[str, Any], notes: list[str]) -> RecordedCurves:
    """Read the metrics of a run folder.

    Args:
        run: The folder.
        results: What its results hold; iterations that the event files lack are taken from there.
        notes: Takes a sentence about what is missing.
    """
    folder = run / TENSORBOARD
    points, seconds = _read_events(folder) if folder.is_dir() else ({}, {})
    recorded = _history(results.get("history"))
    known = {step for values in points.values() for step in values}
    lost = {step for values in recorded.values() for step in values} - known
    for name, values in recorded.items():
        found = {step: value for step, value in values.items() if step in lost}
        if found:
            points.setdefault(name, {}).update(found)
    if not known:
        source = f"{RESULTS} holds them" if lost else f"{RESULTS} holds none either"
        notes.append(f"No metrics in {TENSORBOARD}/; {source}.")
    elif lost and results.get("status") != "running":  # whose events may be still to be written
        missing = "1 iteration is" if len(lost) == 1 else f"{len(lost)} iterations are"
        notes.append(f"{missing} missing in {TENSORBOARD}/; {RESULTS} holds them.")
    curves = {name: _curve(values) for name, values in points.items() if values}
    return RecordedCurves(curves, seconds)


def _read_events(folder: Path) -> tuple[Points, dict[int, float]]:
    """Read the event files in the order in which their processes began."""
    points: Points = {}
    seconds: dict[int, float] = {}
    for _, process, ends in sorted(map(_read_process, folder.glob("events.out.tfevents.*"))):
        measured = [
            step for name in process if name.startswith(_MEASURED) for step in process[name]
        ]
        begin = min(measured, default=math.inf)
        for values in (*points.values(), seconds):
            for step in [step for step in values if step >= begin]:
                del values[step]
        for name, values in process.items():
            points.setdefault(name, {}).update(values)
        seconds |= {
            step: ends[step] - ends[before]
            for before, step in pairwise(sorted(ends))
            if step == before + 1 and ends[step] > ends[before]
        }
    return points, seconds


def _read_process(file: Path) -> tuple[float, Points, dict[int, float]]:
    """Return when a process began, what it measured, and when its iterations ended."""
    # Slow to load, and needed by a report only.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    everything = {"scalars": 0, "images": 1, "tensors": 1, "histograms": 1, "audio": 1}
    accumulator = EventAccumulator(str(file), size_guidance=everything)
    accumulator.Reload()
    names = [name for name in accumulator.Tags()["scalars"] if name.startswith(_PREFIXES)]
    events = {name: accumulator.Scalars(name) for name in names}
    begin = min((event.wall_time for each in events.values() for event in each), default=math.inf)
    points = {
        name: {int(e.step): float(e.value) for e in each if math.isfinite(e.value)}
        for name, each in events.items()
    }
    return begin, points, {int(e.step): e.wall_time for e in events.get(_OF_EVERY_ITERATION, ())}


def _history(history: Any) -> Points:
    """Read the columns of the results."""
    iterations = history.get("iteration") if isinstance(history, Mapping) else None
    if not isinstance(iterations, list):
        return {}
    return {
        str(name): _known(zip(iterations, values, strict=False))
        for name, values in history.items()
        if str(name).startswith(_PREFIXES) and isinstance(values, list)
    }


def _known(points: Iterable[tuple[Any, Any]]) -> dict[int, float]:
    """Return the finite values by iteration."""
    return {
        step: float(value)
        for step, value in points
        if isinstance(step, int) and isinstance(value, int | float) and math.isfinite(value)
    }


def _curve(values: Mapping[int, float]) -> Curve:
    steps = sorted(values)
    return Curve(tuple(steps), tuple(values[step] for step in steps))
