"""What one step of an environment gave, once it is known to be as the contract has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepResult:
    """The checked result of one step."""

    observation: str
    reward: float
    """Finite."""
    terminated: bool
    truncated: bool
    success: bool

    @property
    def has_ended(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated
