"""What a person looks at: tables of results, trajectories as records.

May not decide anything: it shows what was measured elsewhere.
"""

from ragen_pl.report.tables import PolicyResult, render
from ragen_pl.report.trajectory_record import trajectory_record

__all__ = ["PolicyResult", "render", "trajectory_record"]
