"""Play without a model: uniformly random actions under the agent's budgets."""

from __future__ import annotations

import copy
import random

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout import RolloutConfig
from ragen_pl.types import StopReason, Trajectory, TrajectoryGroup


def play_randomly(
    env: TextEnv, seed: int, group_id: int, config: RolloutConfig
) -> TrajectoryGroup:
    """Play one episode of random valid actions, as many as the turns and budgets allow.

    Raises:
        ValueError: when the environment's actions are free text.
    """
    env = copy.deepcopy(env)
    rng = random.Random(seed)
    _, info = env.reset(seed=seed, options={"noise_seed": seed})
    if env.actions is None:
        raise ValueError(f"{type(env).__name__} takes free text: there is no random policy for it")
    initial_state, success, reason = env.get_state(), False, StopReason.MAX_ACTIONS
    for _ in range(min(env.max_actions, config.max_turns * config.max_actions_per_turn)):
        _, _, terminated, truncated, step_info = env.step(rng.choice(env.actions))
        success = bool(step_info["success"])
        if terminated or truncated:
            reason = StopReason.TERMINATED if terminated else reason
            break
    trajectory = Trajectory(
        group_id=group_id,
        member=0,
        seed=seed,
        env_name=env.name,
        stratum=str(info.get("stratum", "")),
        turns=(),
        initial_state=initial_state,
        final_state=env.get_state(),
        stop_reason=reason,
        success=success,
    )
    return TrajectoryGroup(group_id, seed, (trajectory,))
