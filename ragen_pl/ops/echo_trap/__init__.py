"""The Echo Trap alarm as a pure function, from a run's indicators and thresholds to green, amber or
red."""

from ragen_pl.ops.echo_trap.assess import Assessment, Level, assess
from ragen_pl.ops.echo_trap.indicators import Indicators
from ragen_pl.ops.echo_trap.thresholds import CollapseThresholds

__all__ = ["Assessment", "CollapseThresholds", "Indicators", "Level", "assess"]
