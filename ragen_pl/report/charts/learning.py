"""The learning curves of a run, under their headings."""

from __future__ import annotations

from ragen_pl.report.charts.chart import Chart
from ragen_pl.report.charts.outcomes import outcome_charts
from ragen_pl.report.charts.topics import POLICY_AND_UPDATE, SIGNAL, topic_charts
from ragen_pl.report.run_data import RunData


def learning_charts(run: RunData) -> dict[str, list[Chart]]:
    """Return the learning curves of a run, by the heading they stand under."""
    groups = {
        "Learning": [*outcome_charts(run), *topic_charts(SIGNAL, run)],
        "Policy and update": topic_charts(POLICY_AND_UPDATE, run),
    }
    return {heading: charts for heading, charts in groups.items() if charts}
