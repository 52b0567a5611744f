"""The figure of a laboratory: metrics over iterations, with the alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt

from benchmarks.collapse_study import RunSummary, smooth

History = Mapping[str, Sequence[float | None]]
Found = Sequence[tuple[RunSummary, History]]

METRICS = {
    "rollout/success": "success",
    "rollout/in_group_std": "in-group std",
    "rollout/entropy": "entropy",
    "rollout/return": "mean return",
    "train/grad_norm_policy": "gradient norm",
}
COLORS = {"": "tab:red", "-s-updates": "tab:blue", "-s-iterations": "tab:green"}
LABELS = {
    "": "StarPO",
    "-s-updates": "StarPO-S, equal updates",
    "-s-iterations": "StarPO-S, equal iterations",
}
ALGORITHMS = {"ppo": "PPO", "grpo": "GRPO"}


def separating_rate(runs: Sequence[RunSummary]) -> float:
    """Return the rate at which the shares of collapsed runs differ most between variants; the
    lowest of equal ones."""

    def difference(rate: float) -> float:
        fell: dict[str, list[bool]] = {}
        for run in runs:
            if run.rate == rate:
                fell.setdefault(run.variant, []).append(run.outcome == "collapsed")
        shares = [sum(each) / len(each) for each in fell.values()]
        return max(shares) - min(shares)

    return max({run.rate for run in runs}, key=lambda rate: (difference(rate), -rate))


def draw(path: Path, found: Found) -> None:
    """Draw one column per algorithm, at the rate that separates the variants best; nothing where
    no variant has a color."""
    columns = {
        name: [pair for pair in found if pair[0].variant.removeprefix(name) in COLORS]
        for name in ALGORITHMS
    }
    columns = {name: part for name, part in columns.items() if part}
    if not columns:
        return
    rate = separating_rate([summary for part in columns.values() for summary, _ in part])
    figure, axes = plt.subplots(
        len(METRICS),
        len(columns),
        figsize=(4.8 * len(columns), 1.9 * len(METRICS)),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for place, (algorithm, part) in enumerate(columns.items()):
        chosen = [pair for pair in part if pair[0].rate == rate]
        axes[0][place].set_title(f"{ALGORITHMS[algorithm]}, learning rate {rate:g}", fontsize=10)
        for row, metric in enumerate(METRICS):
            draw_metric(axes[row][place], chosen, algorithm, metric)
        draw_alarms(axes[0][place], chosen)
        axes[-1][place].set_xlabel("iteration of RL")
    for row, (metric, name) in enumerate(METRICS.items()):
        axes[row][0].set_ylabel(name)
        if metric == "train/grad_norm_policy":
            axes[row][0].set_yscale("log")
    axes[0][0].legend(fontsize=7, loc="lower left")
    figure.text(
        *(0.5, 0.002),
        "thin: seeds, smoothed; thick: their median; triangles: first amber, first red",
        ha="center",
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.012, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_metric(axes: Any, chosen: Found, algorithm: str, metric: str) -> None:
    """Draw every seed's line and the median of each variant."""
    for suffix, color in COLORS.items():
        lines = [
            places_and_values(history, metric)
            for summary, history in chosen
            if summary.variant == algorithm + suffix
        ]
        for places, values in lines:
            axes.plot(places, values, color=color, alpha=0.3, linewidth=0.8)
        middle = medians(lines)
        if middle:
            axes.plot(*zip(*middle, strict=True), color=color, linewidth=2, label=LABELS[suffix])
    axes.grid(alpha=0.2)


def draw_alarms(axes: Any, chosen: Found) -> None:
    """Mark every run's first amber and first red on its line of success."""
    for summary, history in chosen:
        places, values = places_and_values(history, "rollout/success")
        at = dict(zip(places, values, strict=True))
        suffix = summary.variant.removeprefix(summary.variant.partition("-")[0])
        for alarm, face in ((summary.amber, "orange"), (summary.red, "red")):
            if alarm in at:
                axes.plot(
                    [alarm],
                    [at[alarm]],
                    "v",
                    color=face,
                    markeredgecolor=COLORS[suffix],
                    markersize=6,
                )


def places_and_values(history: History, metric: str) -> tuple[list[int], list[float]]:
    """Return a metric's iterations and its smoothed values."""
    known = [(i, v) for i, v in enumerate(history.get(metric, [])) if v is not None]
    return [i for i, _ in known], smooth([v for _, v in known])


def medians(lines: Sequence[tuple[Sequence[int], Sequence[float]]]) -> list[tuple[int, float]]:
    """Return the median over runs at every iteration that any of them has."""
    by_place: dict[int, list[float]] = {}
    for places, values in lines:
        for place, value in zip(places, values, strict=True):
            by_place.setdefault(place, []).append(value)
    return [(place, median(by_place[place])) for place in sorted(by_place)]
