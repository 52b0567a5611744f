"""The main curves of several runs over each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ragen_pl.report.charts.chart import Chart, Trace, label, last_iteration, line
from ragen_pl.report.charts.outcomes import validated, validated_sets
from ragen_pl.report.charts.topics import makes_single_updates
from ragen_pl.report.run_data import RunData

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


def comparison_charts(runs: Sequence[RunData], names: Sequence[str]) -> list[Chart]:
    """Draw the main curves of several runs over each other."""
    charts: list[Chart] = []
    end = max(last_iteration(run) for run in runs)
    x = {"range": [0, end * 1.01]}
    for eval_set in dict.fromkeys(name for run in runs for name in validated_sets(run)):
        traces: list[Trace] = []
        for tone, (run, name) in enumerate(zip(runs, names, strict=True)):
            for trace in validated(_only(run, eval_set), "success"):
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


def _told_by(metric: str, run: RunData) -> str:
    """Return the metric that says of this run what the given one says of others."""
    if metric == "train/approx_kl" and makes_single_updates(run):
        return "train/update_kl"
    return metric


def _only(run: RunData, eval_set: str) -> RunData:
    """Return a run with one evaluation set."""
    prefix = f"val/{eval_set}/"
    curves = {name: curve for name, curve in run.curves.items() if name.startswith(prefix)}
    kept = tuple(entry for entry in run.evaluations if entry.eval_set == eval_set)
    return replace(run, curves=curves, evaluations=kept)
