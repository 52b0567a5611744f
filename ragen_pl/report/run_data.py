"""What a run folder holds, read once into frozen types; what is missing is said in notes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.report.recorded_curves import TENSORBOARD, Curve, read_curves
from ragen_pl.report.recorded_trajectories import Entry, TrajectoryFolder
from ragen_pl.training.evaluation.results import PolicyResult, readable_evaluations
from ragen_pl.training.failed_ranks import first_failure
from ragen_pl.training.run_folder import CONFIG, RESULTS, TRAJECTORIES

ENVIRONMENT = "environment.json"
"""Name, in the run folder, of the versions and the machine of a run."""
DEFAULTS = "defaults.json"
"""Name, in the run folder, of the defaults of its keys, in the version that ran."""


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
    """As in ``RecordedCurves``."""
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

    @property
    def validation_temperature(self) -> float | None:
        """The temperature of validations; None if the configuration is missing."""
        value = section(self.config, "data", "evaluation").get("temperature")
        return float(value) if isinstance(value, int | float) else None


def section(config: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a part of a configuration by the keys that lead to it; empty where there is none."""
    for name in names:
        below = config.get(name)
        config = below if isinstance(below, Mapping) else {}
    return config


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
        recorded = read_curves(self.path, results, notes)
        entries = self._read_entries(notes)
        if not (results or config or recorded.curves or entries):
            raise ValueError(
                f"{self.path} holds no run: none of {CONFIG}, {RESULTS}, {TENSORBOARD}/ and "
                f"{TRAJECTORIES}/ is there; give the folder of a run"
            )
        status, reason = _end(self.path, results)
        return RunData(
            name=self.path.resolve().name,
            path=self.path,
            status=status,
            reason=reason,
            totals=_totals(results),
            evaluations=_evaluations(results, notes),
            curves=recorded.curves,
            seconds_of_iterations=recorded.seconds_of_iterations,
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


def _end(run: Path, results: Mapping[str, Any]) -> tuple[str, str]:
    """Return the status and the reason. When another rank fails, the first one is killed, and may
    have had no time to write either, or may not have seen the reason."""
    status, reason = str(results.get("status", "unknown")), str(results.get("reason") or "")
    failure = first_failure(run) if status in ("running", "failed") else ""
    return ("failed", failure) if failure else (status, reason)


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
            seconds=_finite(results["seconds"]),
            iterations=int(results["iterations"]),
            trajectories=int(results["trajectories"]),
            sampled_tokens=int(results["sampled_tokens"]),
            trajectories_per_second=_finite(results["trajectories_per_second"]),
            tokens_per_second=_finite(results["tokens_per_second"]),
            warm_start_iterations=int(results.get("warm_start_iterations") or 0),
            demonstrations=int(results.get("demonstrations") or 0),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not finite")
    return number


def _evaluations(results: Mapping[str, Any], notes: list[str]) -> tuple[PolicyResult, ...]:
    found, num_unreadable = readable_evaluations(results)
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
