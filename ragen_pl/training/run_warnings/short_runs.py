"""Warnings of runs that end before they come to what they are configured for.

``trainer.max_time`` is not looked at: how many iterations it leaves time for is not known before.
"""

from __future__ import annotations

from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart


def cut_warm_start(warm_start: WarmStart, max_epochs: int | None, max_steps: int) -> str | None:
    """Return a warning of a run that ends within the warm start; None if it does not.

    A run that ends with the warm start, such as a supervised baseline, is meant so.

    Args:
        warm_start: The warm start.
        max_epochs: The trainer's limit of iterations; None or -1 for none.
        max_steps: The trainer's limit of optimizer steps; -1 for none.
    """
    updates = warm_start.iterations * warm_start.updates_per_iteration
    if max_epochs is not None and 0 <= max_epochs < warm_start.iterations:
        end = f"trainer.max_epochs is {max_epochs}"
    elif 0 <= max_steps < updates:
        end = f"trainer.max_steps is {max_steps}"
    else:
        return None
    return (
        f"data.warm_start has {warm_start.iterations} iterations of "
        f"{warm_start.updates_per_iteration} updates, but {end}: the run ends within the warm "
        "start, before its learning rate has come down and without RL; raise the trainer's limit "
        "or lower data.warm_start.iterations"
    )


def critic_alone(
    warm_start: WarmStart,
    critic_only_iterations: int,
    rollout: RolloutConfig,
    max_epochs: int | None,
    max_steps: int,
) -> str | None:
    """Return a warning of a run in whose RL only the critic is trained; None if it is not so, or
    has no RL.

    Args:
        warm_start: The warm start.
        critic_only_iterations: Iterations of RL before the policy's first update.
        rollout: The size of a rollout, and so the optimizer steps of an iteration.
        max_epochs: The trainer's limit of iterations; None or -1 for none.
        max_steps: The trainer's limit of optimizer steps; -1 for none.
    """
    warm, updates = warm_start.iterations, warm_start.iterations * warm_start.updates_per_iteration
    first = warm + critic_only_iterations
    steps = updates + critic_only_iterations * rollout.fewest_updates
    if max_epochs is not None and warm < max_epochs <= first:
        key, limit, above = "max_epochs", max_epochs, first
    elif updates < max_steps <= steps:
        key, limit, above = "max_steps", max_steps, steps
    else:
        return None
    return (
        f"trainer.{key} is {limit}, but RL updates the policy only after {first} iterations: "
        f"{warm} of the warm start and {critic_only_iterations} of the critic alone. The run ends "
        f"with a policy that RL has not changed; raise trainer.{key} above {above}, or lower the "
        "critic's warmup_iterations or data.warm_start.iterations"
    )
