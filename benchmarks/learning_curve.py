"""Learning curves drawn from run folders: over iterations, and over what learning cost.

``python benchmarks/learning_curve.py OUT.png LABEL=RUN_DIR LABEL=RUN_DIR``

Runs of one label are seeds of one setting: a thin line each for the training success, smoothed, and
points for the evaluation set with their 95 % interval. ``benchmarks/learning.py`` draws the
evaluation set's success over core-seconds and over trajectories. Needs the extra ``figures``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.training.evaluation.results import PolicyResult
from ragen_pl.training.run_folder import CONFIG, FINAL, RESULTS

COLORS = (
    *("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple"),
    *("tab:brown", "tab:pink", "tab:gray", "tab:olive", "tab:cyan"),
)
WINDOW = 10
"""Iterations averaged in a line."""


def smooth(values: list[float | None]) -> tuple[list[int], list[float]]:
    """Average each value with those of the ``WINDOW`` iterations up to it."""
    known = [(place, value) for place, value in enumerate(values) if value is not None]
    places = [place for place, _ in known]
    means = [
        sum(v for _, v in known[max(0, i - WINDOW + 1) : i + 1])
        / len(known[max(0, i - WINDOW + 1) : i + 1])
        for i in range(len(known))
    ]
    return places, means


def eval_set_of(results: dict[str, Any]) -> str:
    """Return the evaluation set whose scores are drawn: the first."""
    return str(results["evaluations"][0]["eval_set"])


def title(run_dir: Path, results: dict[str, Any]) -> str:
    """Return the figure's title: the run's environment and evaluation, from its configuration."""
    data = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))["data"]
    env = data["env"]["class_path"].rpartition(".")[2]
    evaluation, trained = data["evaluation"], data["rollout"]["temperature"]
    return (
        f"{env} · lines: training, temperature {trained:g} · points: evaluation set "
        f"{eval_set_of(results)}, {evaluation['size']} initial states, temperature "
        f"{evaluation['temperature']:g}"
    )


@dataclass(frozen=True)
class Score:
    """Success on an evaluation set after an iteration, with its 95 % interval."""

    place: int
    """The iteration, counted from 0."""
    success: float
    low: float
    high: float


def eval_scores(run_dir: Path, results: dict[str, Any], eval_set: str) -> Iterator[Score]:
    """Iterate over the evaluations during a run, and the final one where the last iteration has
    none. Between two of them the history repeats the last one.
    """
    config = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
    every = config["trainer"]["check_val_every_n_epoch"]
    names = [f"val/{eval_set}/{name}" for name in ("success", "success_low", "success_high")]
    columns = [results["history"].get(name, []) for name in names]
    for place, row in enumerate(zip(*columns, strict=True)):
        if (place + 1) % every == 0 and None not in row:
            yield Score(place, *row)
    end = len(columns[0]) - 1
    if (end + 1) % every:
        temperature = config["data"]["evaluation"]["temperature"]
        wanted = (FINAL, eval_set, temperature)
        for each in map(PolicyResult.from_dict, results["evaluations"]):
            if (each.policy, each.eval_set, each.temperature) == wanted:
                yield Score(end, each.result.success, each.result.low, each.result.high)


def draw_run(axes: Any, run_dir: Path, results: dict[str, Any], color: str, label: str) -> None:
    """Draw one run's training curve and its evaluation set scores.

    Under a curriculum, which keeps training near its target, the curve is of the uniform mix.
    """
    history = results["history"]
    trained = history.get("rollout/success_uniform") or history.get("rollout/success", [])
    places, means = smooth(trained)
    axes.plot(places, means, color=color, alpha=0.6, label=label)
    for score in eval_scores(run_dir, results, eval_set_of(results)):
        axes.vlines(score.place, score.low, score.high, color=color, alpha=0.4)
        axes.plot([score.place], [score.success], "o", color=color, markersize=4)


@dataclass(frozen=True)
class CostCurve:
    """Success on an evaluation set over what learning had cost by then."""

    core_seconds: tuple[float, ...]
    trajectories: tuple[int, ...]
    success: tuple[float, ...]


def cost_curve(run_dir: Path, results: dict[str, Any], eval_set: str, first: float) -> CostCurve:
    """Return the curve of a run with ``benchmarks.core_seconds.CoreSeconds``.

    Args:
        first: Success before the run, at the temperature of the evaluations during it.
    """
    costs = results["costs"]
    scores = list(eval_scores(run_dir, results, eval_set))
    return CostCurve(
        (0.0, *(costs["core_seconds"][score.place] for score in scores)),
        (0, *(costs["trajectories"][score.place] for score in scores)),
        (first, *(score.success for score in scores)),
    )


def draw_costs(path: Path, title: str, curves: Sequence[tuple[str, CostCurve]]) -> None:
    """Draw success over core-seconds and over trajectories, a color for each label.

    A run that collects no trajectories is only in the first panel.
    """
    import matplotlib.pyplot as plt  # only drawing needs it

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    colors = dict(zip(dict.fromkeys(label for label, _ in curves), COLORS * 9, strict=False))
    named: set[str] = set()
    for label, curve in curves:
        style = {"color": colors[label], "linewidth": 0.9, "marker": ".", "markersize": 3}
        shown = label if label not in named else "_"
        named.add(label)
        panels[0].plot(curve.core_seconds, curve.success, label=shown, **style)
        if curve.trajectories[-1]:
            panels[1].plot(curve.trajectories, curve.success, **style)
    for axes, name in zip(panels, ("core-seconds", "trajectories"), strict=True):
        axes.set(xlabel=f"{name} after the warm start", ylim=(0, 1), xlim=(0, None))
        axes.grid(alpha=0.2)
    panels[0].set_ylabel("success")
    figure.suptitle(title, fontsize=10)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(out: str, runs: list[str]) -> None:
    """Draw every run into one figure."""
    import matplotlib.pyplot as plt  # only drawing needs it

    figure, axes = plt.subplots(figsize=(8, 4.2))
    labels: dict[str, str] = {}
    titles: dict[str, None] = {}
    warm = math.inf
    for run in runs:
        label, _, folder = run.partition("=")
        results = json.loads((Path(folder) / RESULTS).read_text(encoding="utf-8"))
        titles[title(Path(folder), results)] = None
        fresh = label not in labels
        color = labels.setdefault(label, COLORS[len(labels) % len(COLORS)])
        draw_run(axes, Path(folder), results, color, label if fresh else "_")
        warm = min(warm, results["warm_start_iterations"])
    if warm:
        axes.axvspan(0, warm, color="0.92")
        axes.text(warm / 2, 0.97, "warm start", ha="center", va="top", fontsize=8, rotation=90)
    axes.set(xlabel="iteration", ylabel="success", ylim=(0, 1), xlim=(0, None))
    axes.set_title("\n".join(titles), fontsize=9)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.2)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
