"""What a run folder holds, read once into frozen types; what is missing is said in notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.report.recorded_trajectories import Entry, TrajectoryFolder
from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.run_folder import CONFIG, RESULTS, TRAJECTORIES

TENSORBOARD = "tensorboard"
ENVIRONMENT = "environment.json"
"""Name, in the run folder, of the versions and the machine of a run."""
DEFAULTS = "defaults.json"
"""Name, in the run folder, of the defaults of its keys, in the version that ran."""
_PREFIXES = (
    *("rollout/", "teacher/", "train/", "val/", "final/"),
    *("collapse/", "diagnostics/", "time/"),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric over iterations; the sequences have equal lengths."""

    iterations: tuple[int, ...]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.values[-1]


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over a whole run."""

    seconds: float
    iterations: int
    trajectories: int
    sampled_tokens: int
    trajectories_per_second: float
    tokens_per_second: float
    warm_start_iterations: int
    demonstrations: int


@dataclass(frozen=True, slots=True)
class AlarmEvent:
    """An iteration at which the alarm was not green."""

    iteration: int
    level: str
    """``amber`` or ``red``."""
    reason: str


@dataclass(frozen=True, slots=True)
class RunData:
    """A run as its folder describes it."""

    name: str
    path: Path
    status: str
    """``running``, ``finished``, ``stopped``, ``interrupted``, ``failed`` or ``unknown``."""
    reason: str
    totals: Totals | None
    evaluations: tuple[PolicyResult, ...]
    curves: Mapping[str, Curve]
    seconds_of_iterations: Mapping[int, float]
    """Seconds from the end of the iteration before to the end of an iteration, by the clock of the
    event file; an iteration after a resumption is missing."""
    alarm: tuple[AlarmEvent, ...]
    config: Mapping[str, Any]
    """The resolved configuration as it is in the file."""
    defaults: Mapping[str, Any]
    """Default values by dotted key, in the version that ran; empty if it did not record them."""
    environment: Mapping[str, str]
    """Versions and machine, by name."""
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]
    """A sentence for each part that is missing or damaged."""
    learned_by: str = ""
    """What the scores owe to hindsight imitation; empty without it, or if it was not recorded."""


class RunReader:
    """A reader of one run folder, which may grow between two readings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trajectories = TrajectoryFolder(path / TRAJECTORIES)

    def read(self) -> RunData:
        """Read what the folder holds now.

        Raises:
            ValueError: when it is no folder of a run.
        """
        if not self.path.is_dir():
            raise ValueError(f"{self.path} is no folder: give the folder of a run")
        notes: list[str] = []
        results = _read_results(self.path, notes)
        config = _read_config(self.path, notes)
        curves, seconds = _read_curves(self.path, results, notes)
        entries = self._read_entries(notes)
        if not (results or config or curves or entries):
            raise ValueError(
                f"{self.path} holds no run: none of {CONFIG}, {RESULTS}, {TENSORBOARD}/ and "
                f"{TRAJECTORIES}/ is there; give the folder of a run"
            )
        return RunData(
            name=self.path.resolve().name,
            path=self.path,
            status=str(results.get("status", "unknown")),
            reason=str(results.get("reason") or ""),
            totals=_totals(results),
            evaluations=_evaluations(results, notes),
            curves=curves,
            seconds_of_iterations=seconds,
            alarm=_alarm(results),
            config=config,
            defaults=_read_json(self.path / DEFAULTS, [], "defaults"),
            environment=_read_environment(self.path, notes),
            entries=entries,
            notes=tuple(notes),
            learned_by=str(results.get("learned_by") or ""),
        )

    def _read_entries(self, notes: list[str]) -> tuple[Entry, ...]:
        files = self._trajectories.index()
        if not files:
            notes.append(
                f"No trajectories: {TRAJECTORIES}/ holds no file yet, or the run kept none."
            )
        for name, file in files.items():
            if file.num_unreadable:
                lines = "line" if file.num_unreadable == 1 else "lines"
                notes.append(
                    f"{file.num_unreadable} {lines} of {TRAJECTORIES}/{name} could not be read and "
                    "are left out: half-written, or of an unknown structure."
                )
        return tuple(entry for file in files.values() for entry in file.entries)


def _read_json(path: Path, notes: list[str], what: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"No {what}: {path.name} is missing.")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"No {what}: {path.name} cannot be read ({type(error).__name__}).")
        return {}
    if not isinstance(content, dict):
        notes.append(f"No {what}: {path.name} holds no mapping.")
        return {}
    return content


def _read_results(run: Path, notes: list[str]) -> dict[str, Any]:
    return _read_json(run / RESULTS, notes, "results")


def _read_environment(run: Path, notes: list[str]) -> dict[str, str]:
    content = _read_json(run / ENVIRONMENT, notes, "versions of the environment")
    return {str(name): str(value) for name, value in content.items()}


def _read_config(run: Path, notes: list[str]) -> dict[str, Any]:
    try:
        tree = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"No configuration: {CONFIG} is missing.")
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        notes.append(f"No configuration: {CONFIG} cannot be read ({type(error).__name__}).")
        return {}
    if not isinstance(tree, dict):
        notes.append(f"No configuration: {CONFIG} holds no keys and values.")
        return {}
    return tree


def write_defaults(run: Path, defaults: Mapping[str, Any]) -> None:
    """Record the defaults of a run's keys, for its report."""
    (run / DEFAULTS).write_text(json.dumps(defaults, indent=1) + "\n", encoding="utf-8")


def _totals(results: Mapping[str, Any]) -> Totals | None:
    try:
        return Totals(
            seconds=float(results["seconds"]),
            iterations=int(results["iterations"]),
            trajectories=int(results["trajectories"]),
            sampled_tokens=int(results["sampled_tokens"]),
            trajectories_per_second=float(results["trajectories_per_second"]),
            tokens_per_second=float(results["tokens_per_second"]),
            warm_start_iterations=int(results.get("warm_start_iterations") or 0),
            demonstrations=int(results.get("demonstrations") or 0),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _evaluations(results: Mapping[str, Any], notes: list[str]) -> tuple[PolicyResult, ...]:
    found, num_unreadable = [], 0
    for entry in results.get("evaluations") or ():
        try:
            found.append(PolicyResult.from_dict(entry))
        except (KeyError, TypeError, ValueError, AttributeError):
            num_unreadable += 1
    if num_unreadable:
        notes.append(
            f"{num_unreadable} evaluations in {RESULTS} could not be read: they were written by "
            "another version."
        )
    return tuple(found)


def _alarm(results: Mapping[str, Any]) -> tuple[AlarmEvent, ...]:
    """Read the alarm's reasons; empty if it stayed green or the run did not record them."""
    try:
        return tuple(
            AlarmEvent(int(event["iteration"]), str(event["level"]), str(event["reason"]))
            for event in results.get("alarm") or ()
        )
    except (KeyError, TypeError, ValueError):
        return ()


# --- curves ---------------------------------------------------------------------------------------


def _read_curves(
    run: Path, results: Mapping[str, Any], notes: list[str]
) -> tuple[dict[str, Curve], dict[int, float]]:
    """Read the metrics from the event files, else from the results."""
    folder = run / TENSORBOARD
    if folder.is_dir():
        curves, seconds = _read_events(folder)
        if curves:
            return curves, seconds
    curves = _history(results.get("history"))
    source = f"{RESULTS} holds them" if curves else f"{RESULTS} holds none either"
    notes.append(f"No metrics in {TENSORBOARD}/; {source}.")
    return curves, {}


def _read_events(folder: Path) -> tuple[dict[str, Curve], dict[int, float]]:
    # Slow to load, and needed by a report only.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    everything = {"scalars": 0, "images": 1, "tensors": 1, "histograms": 1, "audio": 1}
    accumulator = EventAccumulator(str(folder), size_guidance=everything)
    accumulator.Reload()
    curves: dict[str, Curve] = {}
    ends: dict[int, float] = {}
    for name in accumulator.Tags()["scalars"]:
        if not name.startswith(_PREFIXES):
            continue
        # A resumed run repeats iterations: the latest value counts.
        latest = {int(event.step): event for event in accumulator.Scalars(name)}
        curve = _curve((step, event.value) for step, event in latest.items())
        if curve is not None:
            curves[name] = curve
        if name == "time/update":
            ends = {step: event.wall_time for step, event in latest.items()}
    return curves, {
        step: ends[step] - ends[step - 1]
        for step in sorted(ends)
        if step - 1 in ends and ends[step] > ends[step - 1]
    }


def _history(history: Any) -> dict[str, Curve]:
    """Read the columns of the results."""
    if not isinstance(history, Mapping) or not isinstance(history.get("iteration"), list):
        return {}
    iterations = history["iteration"]
    curves = {}
    for name, values in history.items():
        if str(name).startswith(_PREFIXES) and isinstance(values, list):
            curve = _curve(zip(iterations, values, strict=False))
            if curve is not None:
                curves[str(name)] = curve
    return curves


def _curve(points: Iterable[tuple[Any, Any]]) -> Curve | None:
    """Return the finite points in order; None if there are none."""
    known = sorted(
        (int(step), float(value))
        for step, value in points
        if isinstance(value, int | float) and math.isfinite(value)
    )
    if not known:
        return None
    return Curve(tuple(step for step, _ in known), tuple(value for _, value in known))
