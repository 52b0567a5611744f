"""The few numbers a run is judged by, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ragen_pl.report.charts import LEVELS, level_name, validated_sets
from ragen_pl.report.run_data import RunData, Totals
from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.run_folder import FINAL, UNTRAINED

_BEFORE = ("warm-started", UNTRAINED)
"""Policies that the final one is compared with; the first that was evaluated counts."""


@dataclass(frozen=True, slots=True)
class ScoreInterval:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float
    name: str
    """The policy it belongs to."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Success on one evaluation set, before RL and after it."""

    eval_set: str
    before: ScoreInterval | None
    after: ScoreInterval | None
    levels: tuple[ScoreInterval, ...]
    """All evaluated policies, in order: baselines first."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Successive iterations at one level of the alarm other than green."""

    level: str
    first: int
    last: int
    reason: str
    """The sign that raised it, where the run recorded it."""


@dataclass(frozen=True, slots=True)
class RunAlarm:
    """The alarm over a run."""

    counts: tuple[tuple[str, int], ...]
    """Iterations at each level that occurred."""
    now: str
    """The latest level."""
    stretches: tuple[Stretch, ...]

    @property
    def worst(self) -> str:
        return self.counts[-1][0]


def gains(run: RunData) -> list[Gain]:
    """Return the success on every evaluation set, before RL and after it."""
    sets = list(dict.fromkeys([*validated_sets(run), *(e.eval_set for e in run.evaluations)]))
    return [_gain(run, eval_set) for eval_set in sets]


def _gain(run: RunData, eval_set: str) -> Gain:
    temperature, final = _newest(run, eval_set)
    here = [
        e
        for e in run.evaluations
        if e.eval_set == eval_set and e.temperature in (temperature, None) and e.policy != FINAL
    ]
    by_policy = {entry.policy: _score(entry) for entry in here}
    before = next((by_policy[name] for name in _BEFORE if name in by_policy), None)
    after = _latest_validation(run, eval_set) if final is None else _score(final, run.totals)
    levels = (*by_policy.values(), *([] if after is None else [after]))
    return Gain(eval_set, before, after, levels)


def _first_temperature(run: RunData) -> float | None:
    """Return the temperature of the scores that count: the first at which a policy was scored."""
    return next((e.temperature for e in run.evaluations if e.temperature is not None), None)


def _newest(run: RunData, eval_set: str) -> tuple[float | None, PolicyResult | None]:
    """Return the temperature of the newest scores on an evaluation set, and the final policy's
    result at it; None if a validation is newer, as in a run that goes on."""
    temperature = _first_temperature(run)
    final = next(
        (
            e
            for e in run.evaluations
            if (e.policy, e.eval_set, e.temperature) == (FINAL, eval_set, temperature)
        ),
        None,
    )
    validated = run.curves.get(f"val/{eval_set}/success")
    if validated is None:
        return temperature, final
    scored = -1 if final is None else final.iterations
    is_newer = scored is not None and scored < validated.iterations[-1]
    return (run.validation_temperature, None) if is_newer else (temperature, final)


def _score(entry: PolicyResult, totals: Totals | None = None) -> ScoreInterval:
    """Return a policy's score; named with its iteration where the run has gone on since."""
    name, result = entry.policy, entry.result
    if totals is not None and entry.iterations not in (None, totals.iterations):
        name = f"{name}, iteration {entry.iterations}"
    return ScoreInterval(result.success, result.low, result.high, name)


def _latest_validation(run: RunData, eval_set: str) -> ScoreInterval | None:
    mean, low, high = (
        run.curves.get(f"val/{eval_set}/success{end}") for end in ("", "_low", "_high")
    )
    if mean is None or low is None or high is None:
        return None
    return ScoreInterval(mean.last, low.last, high.last, f"iteration {mean.iterations[-1]}")


def thoughts(run: RunData) -> tuple[float | None, float | None]:
    """Return the share of true thoughts before RL and after it, on the first evaluation set."""
    sets = validated_sets(run) or [e.eval_set for e in run.evaluations]
    if not sets:
        return None, None
    temperature, final = _newest(run, sets[0])
    known = {
        e.policy: e.result.thought_accuracy
        for e in run.evaluations
        if e.eval_set == sets[0] and e.temperature == temperature
    }
    before = next((known[name] for name in _BEFORE if name in known), None)
    if final is not None:
        return before, final.result.thought_accuracy
    curve = run.curves.get(f"val/{sets[0]}/thought_accuracy")
    return before, None if curve is None else curve.last


def alarm(run: RunData) -> RunAlarm | None:
    """Summarize the alarm; None if the run had none."""
    curve = run.curves.get("collapse/level")
    if curve is None:
        return None
    levels = [level_name(value) for value in curve.values]
    reasons = {event.iteration: event.reason for event in run.alarm}
    steps = list(zip(curve.iterations, levels, strict=True))
    stretches = []
    for level, part in groupby(steps, key=lambda step: step[1]):
        at = [step for step, _ in part]
        if level != LEVELS[0]:
            reason = next((reasons[step] for step in at if reasons.get(step)), "")
            stretches.append(Stretch(level, at[0], at[-1], reason))
    counts = tuple((name, levels.count(name)) for name in LEVELS if name in levels)
    return RunAlarm(counts, levels[-1], tuple(stretches))


def duration(seconds: float) -> str:
    """Return a length of time in the two units that matter."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}\u00a0min {whole % 60}\u00a0s"
    if whole < 48 * 3600:
        return f"{whole // 3600}\u00a0h {whole % 3600 // 60}\u00a0min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def quantity(count: float) -> str:
    """Return a count in three figures."""
    for size, suffix in ((1e9, "\u202fB"), (1e6, "\u202fM"), (1e3, "\u202fk")):
        if count >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def unique_names(runs: Sequence[RunData]) -> list[str]:
    """Name runs by their folders; by more of the path where folders share a name."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    paths = [run.path.resolve() for run in runs]
    longer = ["/".join(path.parts[-2:]) for path in paths]
    return longer if len(set(longer)) == len(longer) else [str(path) for path in paths]
