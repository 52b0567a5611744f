"""Success, return, thoughts and format: of evaluation sets and of training rollouts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ragen_pl.report.charts.chart import (
    Chart,
    Trace,
    band,
    label,
    last_iteration,
    line,
    marked_warm_start,
    rounded,
)
from ragen_pl.report.run_data import RunData, section


def outcome_charts(run: RunData) -> list[Chart]:
    """Draw what the agent reached, as far as the run has measured it."""
    share = {"yaxis": {"tickformat": ".0%", "range": [0, 1.02]}} | marked_warm_start(run)
    charts = [
        Chart(
            "success",
            "Success",
            f"Evaluation sets with 95 % intervals; training rollouts{_chosen_starts(run)}; "
            "baselines dotted.",
            (*validated(run, "success"), *_rolled(run, "rollout/success"), *_baselines(run)),
            share,
        ),
        _by_difficulty(run, share),
        Chart(
            "return",
            "Return",
            "Mean sum of all reward terms of a trajectory.",
            (*validated(run, "return"), *_rolled(run, "rollout/return")),
            {"yaxis": {}} | marked_warm_start(run),
        ),
        Chart(
            "thoughts",
            "Thoughts that are true",
            "Turns whose thought is correct for the current state. Outcome reward alone can lower "
            "it.",
            (*validated(run, "thought_accuracy"), *_rolled(run, "rollout/thought_accuracy")),
            share,
        ),
        Chart(
            "valid_format",
            "Valid format",
            "Turns that followed the response format entirely. Below 80 % of its best, it is a "
            "sign of collapse.",
            (*validated(run, "valid_format"), *_rolled(run, "rollout/valid_format")),
            share,
        ),
    ]
    return [chart for chart in charts if chart.traces]


def validated_sets(run: RunData) -> list[str]:
    """List the evaluation sets with validation curves: those of the configuration first."""
    known = [str(name) for name in section(run.config, "data", "eval_sets")]
    logged = [
        name.removeprefix("val/").removesuffix("/success")
        for name in run.curves
        if name.startswith("val/") and name.endswith("/success")
    ]
    return [name for name in known if name in logged] + [n for n in logged if n not in known]


def validated(run: RunData, metric: str) -> list[Trace]:
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
                temperature = run.validation_temperature
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
            traces.append(band(at, [ends[step] for step in at], tone))
        traces.append(
            {
                "name": label(eval_set),
                "x": at,
                "y": [rounded(points[step]) for step in at],
                "mode": "lines+markers",
                "meta": {"tone": tone, "kind": "points"},
            }
            | (
                {"customdata": [[rounded(end) for end in ends[step]] for step in at]}
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


def _rolled(run: RunData, metric: str) -> list[Trace]:
    curve = run.curves.get(metric)
    return [] if curve is None else line(curve, "training rollouts", "muted")


def _chosen_starts(run: RunData) -> str:
    """Name the curriculum's part in the success of training rollouts, if there is one."""
    # It is measured only where a curriculum chooses among starts.
    has_curriculum = "rollout/success_uniform" in run.curves
    return ", whose starts a curriculum chooses and makes harder" if has_curriculum else ""


def _baselines(run: RunData) -> list[Trace]:
    """Draw the baselines of the first evaluation set as level lines, equal ones as one."""
    sets = validated_sets(run)
    end = last_iteration(run)
    levels = defaultdict[float, list[str]](list)
    for entry in run.evaluations:
        if entry.temperature is None and sets and entry.eval_set == sets[0]:
            levels[rounded(entry.result.success)].append(entry.policy)
    return [
        {
            "name": label(f"{' and '.join(policies)}, {sets[0]}"),
            "x": [0, end],
            "y": [success] * 2,
            "mode": "lines",
            "hoverinfo": "name+y",
            "meta": {"tone": "muted", "kind": "dash"},
        }
        for success, policies in levels.items()
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
