"""What a run folder grows to: checkpoints and exported policies."""

from __future__ import annotations

from dataclasses import dataclass

from ragen_pl.cli.plan.networks import ParameterCounts
from ragen_pl.training.run_folder import BEST, LAST, PREVIOUS, Export

CHECKPOINT_FILES = (LAST, PREVIOUS, BEST)
"""The checkpoints that are there at the same time."""
EXPORTS = (LAST, BEST)
"""The exported policies that are there at the same time."""


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Bytes of a run's largest files."""

    checkpoint: int
    """One checkpoint: trained weights, a reference and moments."""
    export: int
    """One exported policy."""

    @classmethod
    def of(cls, counts: ParameterCounts) -> DiskPlan:
        return cls(counts.checkpoint_bytes, counts.exported_bytes)

    def total(self, export: Export) -> int:
        """Return the bytes of the run folder at most, while another of each is written.

        Args:
            export: When policies are exported (``checkpoints.export``).
        """
        drafts = 1 if export == "always" else 0
        checkpoints = (len(CHECKPOINT_FILES) + 1) * self.checkpoint
        return checkpoints + (len(EXPORTS) + drafts) * self.export
