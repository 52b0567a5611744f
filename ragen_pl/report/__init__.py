"""Presentation of a run: tables of results, trajectories as records, the HTML report.

May not measure or decide anything: it presents what other packages measured.
"""

from ragen_pl.report.tables import format_results
from ragen_pl.report.trajectory_record import trajectory_record
from ragen_pl.training.evaluation.results import PolicyResult

__all__ = ["PolicyResult", "format_results", "trajectory_record"]
