"""The Echo Trap alarm as a pure function: indicators of a run, thresholds, green, amber or red."""

from ragen_pl.ops.echo_trap.assess import Assessment, Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseRules

__all__ = ["Assessment", "CollapseRules", "Indicators", "Level", "assess"]
