"""Play without a model: uniformly random actions under the agent's budgets."""

from __future__ import annotations

import copy
import random

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout import RolloutConfig
from ragen_pl.types import Completion, StopReason, Trajectory, TrajectoryGroup, Turn


def play_randomly(env: TextEnv, seed: int, group_id: int, config: RolloutConfig) -> TrajectoryGroup:
    """Play one episode of random valid actions, as many as the turns and budgets allow.

    Raises:
        ValueError: when the environment's actions are free text.
    """
    env = copy.deepcopy(env)
    rng = random.Random(seed)
    observation, info = env.reset(seed=seed, options={"noise_seed": seed})
    if env.actions is None:
        raise ValueError(f"{type(env).__name__} takes free text: there is no random policy for it")
    initial_state, initial_hash = env.get_state(), env.state_hash()
    success, reason, gained = False, StopReason.MAX_ACTIONS, 0.0
    actions: list[str] = []
    for _ in range(min(env.max_actions, config.max_turns * config.max_actions_per_turn)):
        actions.append(rng.choice(env.actions))
        _, reward, terminated, truncated, step_info = env.step(actions[-1])
        gained += float(reward)
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
        turns=(_silent_turn(observation, initial_hash, actions, gained),),
        initial_state=initial_state,
        final_state=env.get_state(),
        stop_reason=reason,
        success=success,
    )
    return TrajectoryGroup(group_id, seed, (trajectory,))


def _silent_turn(observation: str, state_hash: str, actions: list[str], reward: float) -> Turn:
    """Record the whole episode as one turn in which nothing was said."""
    return Turn(
        prompt_ids=(),
        completion=Completion((), (), (), stopped=True),
        observation=observation,
        state_hash=state_hash,
        response="",
        thought="",
        thought_tokens=0,
        actions=tuple(actions),
        rewards={"env": reward},
        is_valid=True,
        is_true=None,
    )
