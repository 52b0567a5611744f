"""The warning of a rollout whose turns end before an environment's actions do."""

from __future__ import annotations

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.config import RolloutConfig


def few_turns_warning(env: TextEnv, rollout: RolloutConfig) -> str | None:
    """Return a warning if a trajectory's turns leave less than half of the actions that the
    environment allows, demonstrations included; None if they do not.

    Args:
        env: A training environment.
        rollout: The budgets of a trajectory.
    """
    turns, each = rollout.max_turns, rollout.max_actions_per_turn
    if 2 * turns * each >= env.max_actions:
        return None
    return (
        f"data.rollout.max_turns is {turns} and max_actions_per_turn {each}: a trajectory, also "
        f"the expert's, has at most {turns * each} of the {env.max_actions} actions that "
        f"{env.name} allows. Raise max_turns unless that is meant"
    )
