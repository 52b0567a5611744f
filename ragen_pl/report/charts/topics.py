"""Charts of metrics that belong together: the learning signal, policy and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ragen_pl.report.charts.chart import Chart, line, marked_warm_start
from ragen_pl.report.run_data import RunData


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
    series: tuple[_Series, ...]
    is_log: bool = False
    share: bool = False


def _topic(key: str, title: str, text: str, *series: _Series, **kind: bool) -> _Topic:
    return _Topic(key, title, text, series, **kind)


SIGNAL = (
    _topic(
        "signal",
        "Learning signal",
        "Standard deviation of the return within a group. Falling while success rises is healthy; "
        "falling alone is the Echo Trap.",
        _Series("rollout/in_group_std", "all groups", 0),
        _Series("rollout/in_group_std_kept", "groups the filter kept", 2),
    ),
)
POLICY_AND_UPDATE = (
    _topic(
        "entropy",
        "Entropy",
        "Of a sampled token, in nats. A smooth decay is healthy; a jump means that the policy is "
        "breaking.",
        _Series("rollout/entropy", "all tokens", 0),
        _Series("rollout/entropy_first_half", "first half", 1),
        _Series("rollout/entropy_second_half", "second half", 2),
    ),
    _topic(
        "length",
        "Length",
        "Tokens of a response, words of a thought. Below 40 % of the start, reasoning is being "
        "given up.",
        _Series("rollout/response_length", "tokens per response", 0),
        _Series("rollout/thought_length", "words per thought", 1),
    ),
    _topic(
        "variety",
        "Groups without signal, and variety",
        "Groups whose members all earned the same; different responses within a group.",
        _Series("rollout/zero_std_fraction", "groups without signal", 3),
        _Series("rollout/distinct_responses_in_group", "different responses", 0),
        share=True,
    ),
    _topic(
        "kl",
        "Approximate KL",
        "Between the collecting policy and the updated one, in nats a token. The alarm turns amber "
        "above its threshold max_approx_kl (0.015 unless set).",
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
        _Series("train/clip_fraction", "clipped", 0, updates="several"),
    ),
    _topic(
        "grad_norm",
        "Gradient norm",
        "Before clipping. A spike is often the last sign before a collapse.",
        _Series("train/grad_norm_policy", "policy", 0),
        _Series("train/grad_norm_critic", "critic", 1),
    ),
)


def topic_charts(topics: Sequence[_Topic], run: RunData) -> list[Chart]:
    """Draw those of which the run has a metric."""
    return [chart for topic in topics if (chart := _chart(topic, run)) is not None]


def _chart(topic: _Topic, run: RunData) -> Chart | None:
    updates = "one" if makes_single_updates(run) else "several"
    traces = [
        trace
        for series in topic.series
        if (curve := run.curves.get(series.metric)) is not None
        and series.updates in (None, updates)
        for trace in line(curve, series.name, series.tone)
    ]
    if not traces:
        return None
    y: dict[str, Any] = {}
    if topic.is_log and all(value > 0 for trace in traces for value in trace["y"]):
        y |= {"type": "log", "dtick": "D2"}
    else:
        y |= {"rangemode": "tozero"}
    if topic.share:
        y |= {"tickformat": ".0%", "range": [0, 1.02]}
    layout = {"yaxis": y} | marked_warm_start(run)
    return Chart(topic.key, topic.title, topic.text, tuple(traces), layout)


def makes_single_updates(run: RunData) -> bool:
    """Tell whether every collection made a single update, from the policy that had sampled it."""
    updates = run.curves.get("train/updates")
    return updates is not None and max(updates.values, default=0.0) <= 1.0
