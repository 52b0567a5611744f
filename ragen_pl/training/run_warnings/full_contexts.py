"""The warning of a rollout most of whose trajectories end because the context is full."""

from __future__ import annotations

from ragen_pl.rollout.config import RolloutConfig

_MOST = 0.5
"""Share of the trajectories above which it is told."""


def full_context_warning(share: float, rollout: RolloutConfig, iteration: int) -> str | None:
    """Return a warning if most trajectories of a rollout ended as ``CONTEXT_FULL``, or None.

    Args:
        share: Share of all ranks' trajectories that ended so, from 0 to 1.
        rollout: The budgets of a trajectory.
        iteration: The iteration that played them.
    """
    if share <= _MOST:
        return None
    memory, limit = rollout.memory, rollout.memory.limit(rollout.max_context)
    key = "max_context" if limit == rollout.max_context else "memory.budget"
    further = "" if memory.cuts else ", or let a memory cut the past (data.rollout.memory: Window)"
    return (
        f"warning: {share:.0%} of the trajectories of iteration {iteration + 1} ended as "
        f"context_full: their next turn had no room in data.rollout.{key}, {limit} tokens. "
        f"Raise it, lower data.rollout.max_response_tokens or max_turns{further}; doctor measures "
        "what whole trajectories take"
    )
