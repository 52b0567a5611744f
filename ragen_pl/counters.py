"""Count what a run did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """Count over the whole run, resumptions included."""

    seconds: float = 0.0
    """Before this process took over."""
    iterations: int = 0
    trajectories: int = 0
    sampled_tokens: int = 0
    collecting_seconds: float = 0.0

    def facts(self, seconds: float) -> dict[str, Any]:
        """Return plain data with the rates of collecting.

        Args:
            seconds: The run's length so far.
        """
        span = max(self.collecting_seconds, 1e-9)
        return asdict(self) | {
            "seconds": round(seconds, 1),
            "collecting_seconds": round(self.collecting_seconds, 1),
            "trajectories_per_second": round(self.trajectories / span, 2),
            "tokens_per_second": round(self.sampled_tokens / span, 1),
        }
