"""Learning curves drawn from run folders.

``python benchmarks/learning_curve.py OUT.png LABEL=RUN_DIR LABEL=RUN_DIR``

Runs of one label are seeds of one setting: a thin line each for the training success, smoothed, and
points for the evaluation set with their 95 % interval. Needs the extra ``figures``.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.training.run_folder import CONFIG, RESULTS

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")
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


def draw_run(axes: Any, results: dict[str, Any], color: str, label: str) -> None:
    """Draw one run's training curve and its evaluation set scores."""
    history = results["history"]
    places, means = smooth(history.get("rollout/success", []))
    axes.plot(places, means, color=color, alpha=0.6, label=label)
    default = eval_set_of(results)
    low, high, middle = (
        history.get(f"val/{default}/{name}", [])
        for name in ("success_low", "success_high", "success")
    )
    last = None
    for place, value in enumerate(middle):
        if value is not None and value != last:
            axes.vlines(place, low[place], high[place], color=color, alpha=0.4)
            axes.plot([place], [value], "o", color=color, markersize=4)
            last = value


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
        draw_run(axes, results, color, label if fresh else "_")
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
