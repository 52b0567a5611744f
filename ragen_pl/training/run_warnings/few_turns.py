"""The warning of a rollout whose turns end before an environment's actions do."""

from __future__ import annotations

from ragen_pl.envs.base import TextEnv


def few_turns_warning(env: TextEnv, max_turns: int, actions_per_turn: int) -> str | None:
    """Return a warning if a trajectory's turns leave less than half of the actions that the
    environment allows, demonstrations included; None if they do not.

    Args:
        env: A training environment.
        max_turns: The turns of a trajectory in it.
        actions_per_turn: The most actions of a turn in it; 1 of free text.
    """
    most = max_turns * actions_per_turn
    if 2 * most >= env.max_actions:
        return None
    return (
        f"{env.name} is played in {max_turns} turns (max_turns) of {actions_per_turn} actions at "
        f"most: a trajectory, also the expert's, has at most {most} of the {env.max_actions} "
        "actions that it allows. Raise max_turns unless that is meant"
    )
