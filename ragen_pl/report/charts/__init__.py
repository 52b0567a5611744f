"""Figures of a report as Plotly's JSON, without colors: the page adds those of its theme.

A trace's ``meta`` says how it looks: its ``tone`` (a number of the palette, or a name such as
``muted``) and its ``kind`` (``line``, ``faint``, ``band``, ``dash``, ``points``, ``bar``,
``alarm``).
"""

from ragen_pl.report.charts.alarm import LEVELS, alarm_chart, level_name, sign_charts
from ragen_pl.report.charts.chart import MAX_POINTS, Chart, Trace, label, last_iteration, line
from ragen_pl.report.charts.compared_runs import comparison_charts
from ragen_pl.report.charts.learning import learning_charts
from ragen_pl.report.charts.outcomes import difficulty_order, validated_sets
from ragen_pl.report.charts.phases import phase_chart, phase_seconds

__all__ = [
    "LEVELS",
    "MAX_POINTS",
    "Chart",
    "Trace",
    "alarm_chart",
    "comparison_charts",
    "difficulty_order",
    "label",
    "last_iteration",
    "learning_charts",
    "level_name",
    "line",
    "phase_chart",
    "phase_seconds",
    "sign_charts",
    "validated_sets",
]
