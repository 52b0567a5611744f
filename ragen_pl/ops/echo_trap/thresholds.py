"""Thresholds of the Echo Trap alarm: four keys, and constants.

Ratios compare a smoothed indicator with its baseline or with its best smoothed value. The constants
were chosen on healthy and on collapsing runs (``docs/echo_trap.md``).
"""

from __future__ import annotations

from dataclasses import dataclass

SMOOTHING = 0.8
"""Weight of the past in the slow moving averages."""
EARLY_SMOOTHING = 0.5
"""Weight of the past in the fast moving averages, which early signs and the penalty share use."""

SUCCESS_AMBER = 0.75
"""Success below this share of its best, together with a sign, is amber."""
SUCCESS_RED_WITH_SIGN = 0.5
"""Success below this share of its best is red with a sign, amber without."""
SUCCESS_RED = 0.25
"""Success below this share of its best is red."""
STD_RED = 0.1
"""In-group std below this share of its baseline is red, unless success or return has risen or the
task is solved."""
PENALTY_SHARE_RED = 0.9
"""A larger share of trajectories at the format penalty's floor is red, in the fast averages."""

STD_SIGN = 0.5
"""In-group std below this share of its baseline is a sign."""
ZERO_STD_SIGN = 0.6
"""A larger share of groups with zero std is a sign."""
LOW_ENTROPY_SIGN = 0.5
"""Entropy below this share of its baseline is a sign."""
HIGH_ENTROPY_SIGN = 2.0
"""Entropy above this multiple of its baseline is a sign."""
FORMAT_SIGN = 0.8
"""A valid-format rate below this share of its best is a sign."""
GRAD_NORM_SIGN = 5.0
"""A policy gradient norm above this multiple of its baseline is a sign, and an early sign."""

FORMAT_EARLY_SIGN = 0.9
"""A valid-format rate below this share of its best is an early sign."""
RESPONSE_LENGTH_EARLY_SIGN = 1.2
"""A response length above this multiple of its baseline is an early sign."""
ENTROPY_RISE_EARLY_SIGN = 1.5
"""Entropy above this multiple of its lowest value so far is an early sign."""
SUCCESS_EARLY_SIGN = 0.8
"""Success below this share of its best, by more than noise, is an early sign."""
LOW_APPROX_KL = 0.015
"""Approximate KL of updates, or the KL of a single one, in nats per token, up to which early signs
are amber only if they last and success is among them."""


@dataclass(frozen=True)
class CollapseThresholds:
    """The thresholds a user may need to set.

    Args:
        early_signs: Number of early signs that are amber when they last for ``early_patience``
            iterations; one more is amber at once. 99 switches early signs off.
        early_patience: Iterations in a row after which an early sign lasts.
        solved_success: Success rate from which on a lower in-group std and entropy count as
            convergence, even if neither success nor return has risen.
        max_approx_kl: Approximate KL between the policy that sampled and the one being updated, in
            nats per token, averaged over an iteration's updates; where it makes a single one, from
            before that update to after it. A larger one is amber, as a warning. ``.inf`` switches
            the warning off.
    """

    early_signs: int = 2
    early_patience: int = 2
    solved_success: float = 0.6
    max_approx_kl: float = 0.015

    def __post_init__(self) -> None:
        for key in ("early_signs", "early_patience"):
            if getattr(self, key) < 1:
                raise ValueError(f"thresholds.{key} is {getattr(self, key)}; it must be at least 1")
        if not 0.0 <= self.solved_success <= 1.0:
            raise ValueError(
                f"thresholds.solved_success is {self.solved_success}; it must lie in [0, 1]"
            )
        if self.max_approx_kl <= 0.0:
            raise ValueError(
                f"thresholds.max_approx_kl is {self.max_approx_kl}; it must be above 0"
            )
