"""Figures of a report as Plotly's JSON, without colors: the page adds those of its theme.

A trace's ``meta`` says how it looks: its ``tone`` (a number of the palette, or a name such as
``muted``) and its ``kind`` (``line``, ``faint``, ``band``, ``dash``, ``points``).
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from ragen_pl.report.run_data import Curve, RunData
from ragen_pl.runtime.visible_text import visible

MAX_POINTS = 600
"""Points of a curve that are drawn; longer curves are averaged."""
_SMOOTHING = 0.8
_MIN_SMOOTHED = 30
"""Points from which on a curve is drawn smoothed, over its raw points."""

Trace = dict[str, Any]


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


@dataclass(frozen=True, slots=True)
class _Series:
    """A metric in a chart."""

    metric: str
    name: str
    tone: int
    updates: Literal["one", "several"] | None = None
    """The updates of a collection where it says something; None for any number."""


@dataclass(frozen=True, slots=True)
class _Topic:
    """A chart of metrics that belong together."""

    key: str
    title: str
    text: str
    unit: str
    series: tuple[_Series, ...]
    is_log: bool = False
    share: bool = False


def _topic(key: str, title: str, text: str, unit: str, *series: _Series, **kind: bool) -> _Topic:
    return _Topic(key, title, text, unit, series, **kind)


_OUTCOMES = (
    _topic(
        "signal",
        "Learning signal",
        "Standard deviation of the return within a group. Falling while success rises is healthy; "
        "falling alone is the Echo Trap.",
        "",
        _Series("rollout/in_group_std", "all groups", 0),
        _Series("rollout/in_group_std_kept", "groups the filter kept", 2),
    ),
)
_TOPICS = (
    _topic(
        "entropy",
        "Entropy",
        "Of a sampled token, in nats. A smooth decay is healthy; a jump means that the policy is "
        "breaking.",
        "",
        _Series("rollout/entropy", "all tokens", 0),
        _Series("rollout/entropy_first_half", "first half", 1),
        _Series("rollout/entropy_second_half", "second half", 2),
    ),
    _topic(
        "length",
        "Length",
        "Tokens of a response, words of a thought. Below 40 % of the start, reasoning is being "
        "given up.",
        "",
        _Series("rollout/response_length", "tokens per response", 0),
        _Series("rollout/thought_length", "words per thought", 1),
    ),
    _topic(
        "variety",
        "Groups without signal, and variety",
        "Groups whose members all earned the same; different responses within a group.",
        "",
        _Series("rollout/zero_std_fraction", "groups without signal", 3),
        _Series("rollout/distinct_responses_in_group", "different responses", 0),
        share=True,
    ),
    _topic(
        "kl",
        "Approximate KL",
        "Between the collecting policy and the updated one, in nats a token. The alarm turns amber "
        "above its threshold max_approx_kl (0.015 unless set).",
        "",
        _Series("train/approx_kl", "of an iteration", 0, updates="several"),
        _Series("train/update_kl", "before and after the update", 1),
        _Series("collapse/approx_kl", "as the alarm sees it", 3),
        _Series("collapse/update_kl", "as the alarm sees it", 3, updates="one"),
        is_log=True,
    ),
    _topic(
        "clip",
        "Clip fraction",
        "Tokens whose ratio is out of bounds. 0 to 0.05 is usual.",
        "",
        _Series("train/clip_fraction", "clipped", 0, updates="several"),
    ),
    _topic(
        "grad_norm",
        "Gradient norm",
        "Before clipping. A spike is often the last sign before a collapse.",
        "",
        _Series("train/grad_norm_policy", "policy", 0),
        _Series("train/grad_norm_critic", "critic", 1),
    ),
)


def learning_charts(run: RunData) -> dict[str, list[Chart]]:
    """Return the learning curves of a run, by the heading they stand under."""
    groups = {
        "Learning": [*_outcomes(run), *_charts(_OUTCOMES, run)],
        "Policy and update": _charts(_TOPICS, run),
    }
    return {heading: charts for heading, charts in groups.items() if charts}


def _charts(topics: Sequence[_Topic], run: RunData) -> list[Chart]:
    return [chart for topic in topics if (chart := _chart(topic, run)) is not None]


def _chart(topic: _Topic, run: RunData) -> Chart | None:
    updates = "one" if _makes_single_updates(run) else "several"
    traces = [
        trace
        for series in topic.series
        if (curve := run.curves.get(series.metric)) is not None
        and series.updates in (None, updates)
        for trace in line(curve, series.name, series.tone)
    ]
    if not traces:
        return None
    y: dict[str, Any] = {"title": {"text": topic.unit}}
    if topic.is_log and all(value > 0 for trace in traces for value in trace["y"]):
        y |= {"type": "log", "dtick": "D2"}
    else:
        y |= {"rangemode": "tozero"}
    if topic.share:
        y |= {"tickformat": ".0%", "range": [0, 1.02]}
    layout = {"yaxis": y} | _warm_start(run)
    return Chart(topic.key, topic.title, topic.text, tuple(traces), layout)


def _makes_single_updates(run: RunData) -> bool:
    """Tell whether every collection made a single update, from the policy that had sampled it."""
    updates = run.curves.get("train/updates")
    return updates is not None and max(updates.values, default=0.0) <= 1.0


# --- success, return, thoughts --------------------------------------------------------------------


def _outcomes(run: RunData) -> list[Chart]:
    share = {"yaxis": {"tickformat": ".0%", "range": [0, 1.02]}} | _warm_start(run)
    charts = [
        Chart(
            "success",
            "Success",
            "Evaluation sets with 95 % intervals; training rollouts, whose starts get harder under "
            "a curriculum; baselines dotted.",
            (*_validated(run, "success"), *_rolled(run, "rollout/success"), *_baselines(run)),
            share,
        ),
        _by_difficulty(run, share),
        Chart(
            "return",
            "Return",
            "Mean sum of all reward terms of a trajectory.",
            (*_validated(run, "return"), *_rolled(run, "rollout/return")),
            {"yaxis": {}} | _warm_start(run),
        ),
        Chart(
            "thoughts",
            "Thoughts that are true",
            "Turns whose thought is correct for the current state. Outcome reward alone can lower "
            "it.",
            (*_validated(run, "thought_accuracy"), *_rolled(run, "rollout/thought_accuracy")),
            share,
        ),
        Chart(
            "valid_format",
            "Valid format",
            "Turns that followed the response format entirely. Below 80 % of its best, it is a "
            "sign of collapse.",
            (*_validated(run, "valid_format"), *_rolled(run, "rollout/valid_format")),
            share,
        ),
    ]
    return [chart for chart in charts if chart.traces]


def validated_sets(run: RunData) -> list[str]:
    """List the evaluation sets with validation curves: those of the configuration first."""
    known = [str(name) for name in (run.config.get("data") or {}).get("eval_sets") or {}]
    logged = [
        name.removeprefix("val/").removesuffix("/success")
        for name in run.curves
        if name.startswith("val/") and name.endswith("/success")
    ]
    return [name for name in known if name in logged] + [n for n in logged if n not in known]


def _validated(run: RunData, metric: str) -> list[Trace]:
    """Draw a metric of the validations, with its interval where there is one; evaluations at the
    ends of warm start and run count as validations."""
    traces: list[Trace] = []
    for tone, eval_set in enumerate(validated_sets(run)):
        curve = run.curves.get(f"val/{eval_set}/{metric}")
        low, high = (run.curves.get(f"val/{eval_set}/{metric}_{end}") for end in ("low", "high"))
        points = {} if curve is None else dict(zip(curve.iterations, curve.values, strict=True))
        ends = {
            iteration: (low_value, high_value)
            for iteration, low_value, high_value in (
                ()
                if low is None or high is None
                else zip(low.iterations, low.values, high.values, strict=False)
            )
        }
        for entry in run.evaluations:
            if entry.eval_set == eval_set and entry.iterations is not None:
                temperature = _eval_temperature(run)
                if entry.temperature == temperature and entry.iterations not in points:
                    value = _scores(entry.result).get(metric)
                    if value is not None:
                        points[entry.iterations] = value
                        if metric == "success":
                            ends[entry.iterations] = entry.result.low, entry.result.high
        if not points:
            continue
        at = sorted(points)
        if metric == "success" and all(step in ends for step in at):
            traces.append(_band(at, [ends[step] for step in at], tone))
        traces.append(
            {
                "name": label(eval_set),
                "x": at,
                "y": [_rounded(points[step]) for step in at],
                "mode": "lines+markers",
                "meta": {"tone": tone, "kind": "points"},
            }
            | (
                {"customdata": [[_rounded(end) for end in ends[step]] for step in at]}
                if metric == "success" and all(step in ends for step in at)
                else {}
            )
        )
    return traces


def _scores(result: Any) -> dict[str, float | None]:
    return {
        "success": result.success,
        "return": result.mean_return,
        "thought_accuracy": result.thought_accuracy,
        "valid_format": result.valid_format,
    }


def _eval_temperature(run: RunData) -> float | None:
    value = ((run.config.get("data") or {}).get("evaluation") or {}).get("temperature")
    return float(value) if isinstance(value, int | float) else None


def _rolled(run: RunData, metric: str) -> list[Trace]:
    curve = run.curves.get(metric)
    return [] if curve is None else line(curve, "training rollouts", "muted")


def _baselines(run: RunData) -> list[Trace]:
    """Draw the baselines of the first evaluation set as level lines."""
    sets = validated_sets(run)
    end = last_iteration(run)
    return [
        {
            "name": label(f"{entry.policy}, {entry.eval_set}"),
            "x": [0, end],
            "y": [_rounded(entry.result.success)] * 2,
            "mode": "lines",
            "hoverinfo": "name+y",
            "meta": {"tone": "muted", "kind": "dash"},
        }
        for entry in run.evaluations
        if entry.temperature is None and sets and entry.eval_set == sets[0]
    ]


def _by_difficulty(run: RunData, layout: Mapping[str, Any]) -> Chart:
    prefix = "rollout/success_at/"
    names = sorted(
        (name for name in run.curves if name.startswith(prefix)),
        key=lambda name: (name.rpartition("/")[0], difficulty_order(name)),  # by environment first
    )
    traces = [
        trace
        for tone, name in enumerate(names)
        for trace in line(run.curves[name], name.removeprefix(prefix), f"ramp{tone}/{len(names)}")
    ]
    return Chart(
        "difficulty",
        "Success by difficulty",
        "Of training rollouts. It rises at the easier starts first.",
        tuple(traces),
        layout,
    )


def difficulty_order(name: str) -> tuple[float, str]:
    """Return a key that sorts difficulties by the number they begin with."""
    digits = ""
    for character in name.rpartition("/")[2]:
        if not character.isdecimal():
            break
        digits += character
    return (float(digits) if digits else math.inf), name


# --- traces ---------------------------------------------------------------------------------------


def line(curve: Curve, name: str, tone: int | str) -> list[Trace]:
    """Draw a curve: smoothed over its faint raw points where there are many."""
    x, y = _thinned(curve)
    shown = label(name)
    if len(x) < _MIN_SMOOTHED:
        mode = "lines+markers" if len(x) < 12 else "lines"
        return [
            {"name": shown, "x": x, "y": y, "mode": mode, "meta": {"tone": tone, "kind": "line"}}
        ]
    smooth, mean = [], y[0]
    for value in y:
        mean += (1 - _SMOOTHING) * (value - mean)
        smooth.append(_rounded(mean))
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


def _band(x: Sequence[int], ends: Sequence[tuple[float, float]], tone: int) -> Trace:
    lows, highs = [low for low, _ in ends], [high for _, high in ends]
    return {
        "name": "95 % interval",
        "x": [*x, *reversed(x)],
        "y": [_rounded(value) for value in (*highs, *reversed(lows))],
        "mode": "lines",
        "meta": {"tone": tone, "kind": "band"},
    }


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """Return at most ``MAX_POINTS`` points: means of neighbors where there are more."""
    size = max(1, math.ceil(len(curve.values) / MAX_POINTS))
    starts = range(0, len(curve.values), size)
    x = [float(curve.iterations[min(s + size, len(curve.values)) - 1]) for s in starts]
    y = [_rounded(fmean(curve.values[s : s + size])) for s in starts]
    return x, y


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def label(text: str) -> str:
    """Return a text for Plotly, which would read tags in it."""
    return html.escape(visible(text), quote=False)


def last_iteration(run: RunData) -> int:
    """Return the last iteration with a metric."""
    return max((curve.iterations[-1] for curve in run.curves.values()), default=1)


def _warm_start(run: RunData) -> dict[str, Any]:
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


# --- phases, alarm, comparison --------------------------------------------------------------------

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
                "y": [_rounded(fmean(values.get(step, 0.0) for step in chunk)) for chunk in chunks],
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


LEVELS = ("green", "amber", "red")


def alarm_chart(run: RunData) -> Chart | None:
    """Draw the alarm's level over iterations as one band, each iteration with its reason."""
    curve = run.curves.get("collapse/level")
    if curve is None:
        return None
    reasons = {event.iteration: event.reason for event in run.alarm}
    steps, levels = curve.iterations, [min(2, max(0, round(v))) for v in curve.values]
    bars: list[Trace] = []
    for number, name in enumerate(LEVELS):
        at = [step for step, level in zip(steps, levels, strict=True) if level == number]
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


def _wrapped(text: str) -> str:
    """Cut a reason to the length of a hover text."""
    return text if len(text) < 160 else text[:157] + "…"


def sign_charts(run: RunData) -> Chart | None:
    """Draw the indicators behind the alarm, relative to their baselines."""
    traces: list[Trace] = []
    names = [
        name for name in run.curves if name.startswith("collapse/") and name.endswith("_ratio")
    ]
    for tone, name in enumerate(names):
        shown = name.removeprefix("collapse/").removesuffix("_ratio").replace("_", " ")
        x, y = _thinned(run.curves[name])
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
    layout = {"yaxis": {"title": {"text": "of baseline"}, "rangemode": "tozero"}} | _warm_start(run)
    text = (
        "Smoothed indicators relative to the run's first RL iterations, valid format and success "
        "relative to their best. Near 1, or falling while success rises, is healthy."
    )
    return Chart("signs", "Signs behind the alarm", text, tuple(traces), layout)


def comparison_charts(runs: Sequence[RunData], names: Sequence[str]) -> list[Chart]:
    """Draw the main curves of several runs over each other."""
    charts: list[Chart] = []
    end = max(last_iteration(run) for run in runs)
    x = {"range": [0, end * 1.01]}
    for eval_set in dict.fromkeys(name for run in runs for name in validated_sets(run)):
        traces: list[Trace] = []
        for tone, (run, name) in enumerate(zip(runs, names, strict=True)):
            for trace in _validated(_only(run, eval_set), "success"):
                shown = {} if trace["meta"]["kind"] == "band" else {"name": label(name)}
                traces.append(trace | shown | {"meta": trace["meta"] | {"tone": tone}})
        if traces:
            layout = {"yaxis": {"tickformat": ".0%", "range": [0, 1.02]}, "xaxis": x}
            text = "Validation, with 95 % intervals."
            charts.append(
                Chart(f"success-{eval_set}", f"Success on {eval_set}", text, tuple(traces), layout)
            )
    for metric, title in _COMPARED.items():
        traces = [
            trace
            for tone, (run, name) in enumerate(zip(runs, names, strict=True))
            if (curve := run.curves.get(_told_by(metric, run))) is not None
            for trace in line(curve, name, tone)
        ]
        if traces:
            is_share = metric in ("rollout/success", "rollout/thought_accuracy")
            layout = {"yaxis": {"tickformat": ".0%"} if is_share else {}, "xaxis": x}
            charts.append(Chart(metric, title, "", tuple(traces), layout))
    return charts


_COMPARED = {
    "rollout/success": "Success of training rollouts",
    "rollout/return": "Return of training rollouts",
    "rollout/thought_accuracy": "Thoughts that are true",
    "rollout/entropy": "Entropy",
    "rollout/response_length": "Tokens per response",
    "rollout/in_group_std": "In-group standard deviation",
    "train/approx_kl": "Approximate KL",
    "train/grad_norm_policy": "Gradient norm of the policy",
}


def _told_by(metric: str, run: RunData) -> str:
    """Return the metric that says of this run what the given one says of others."""
    if metric == "train/approx_kl" and _makes_single_updates(run):
        return "train/update_kl"
    return metric


def _only(run: RunData, eval_set: str) -> RunData:
    """Return a run with one evaluation set."""
    prefix = f"val/{eval_set}/"
    curves = {name: curve for name, curve in run.curves.items() if name.startswith(prefix)}
    kept = tuple(entry for entry in run.evaluations if entry.eval_set == eval_set)
    return replace(run, curves=curves, evaluations=kept)
