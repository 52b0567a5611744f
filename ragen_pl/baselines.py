"""Play without a model, under the agent's budgets: what luck and what knowledge achieve."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout_config import RolloutConfig
from ragen_pl.types import Completion, StopReason, Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True)
class Baseline:
    """Name a way to play without a model."""

    name: str
    act: Callable[[TextEnv, random.Random, int], tuple[str, ...]]
    """Chooses the actions of one turn, at most the given number."""
    exists: Callable[[TextEnv], bool]
    """Tells whether an environment can be played so."""


def _random_actions(env: TextEnv, rng: random.Random, limit: int) -> tuple[str, ...]:
    assert env.actions is not None
    return tuple(rng.choice(env.actions) for _ in range(limit))


def _expert_actions(env: TextEnv, rng: random.Random, limit: int) -> tuple[str, ...]:
    return env.expert_turn(rng, limit)[1]


BASELINES = (
    Baseline("random", _random_actions, lambda env: env.actions is not None),
    Baseline(
        "expert", _expert_actions, lambda env: type(env).expert_turn is not TextEnv.expert_turn
    ),
)
"""Uniformly random moves, where moves have names; the environment's expert, where it has one."""


def play_baseline(
    env: TextEnv, seed: int, group_id: int, config: RolloutConfig, baseline: Baseline
) -> TrajectoryGroup:
    """Play one episode, turn by turn, as far as turns and budgets allow."""
    env = copy.deepcopy(env)
    rng = random.Random(seed)
    observation, info = env.reset(seed=seed, options={"noise_seed": seed})
    initial_state, seen = env.get_state(), (env.state_hash(), env.anchor_key())
    turns: list[Turn] = []
    success, reason, actions_left = False, None, env.max_actions
    while reason is None:
        limit = min(config.max_actions_per_turn, actions_left)
        executed, gained = [], 0.0
        for action in baseline.act(env, rng, limit):
            observation_after, reward, terminated, truncated, step_info = env.step(action)
            executed.append(action)
            gained += float(reward)
            success = bool(step_info["success"])
            if terminated or truncated:
                reason = StopReason.TERMINATED if terminated else StopReason.MAX_ACTIONS
                break
        turns.append(_silent_turn(observation, seen, tuple(executed), gained))
        observation, seen = observation_after, (env.state_hash(), env.anchor_key())
        actions_left -= len(executed)
        if reason is None and actions_left <= 0:
            reason = StopReason.MAX_ACTIONS
        elif reason is None and len(turns) >= config.max_turns:
            reason = StopReason.MAX_TURNS
    trajectory = Trajectory(
        group_id=group_id,
        member=0,
        seed=seed,
        env_name=env.name,
        stratum=str(info.get("stratum", "")),
        turns=tuple(turns),
        initial_state=initial_state,
        final_state=env.get_state(),
        stop_reason=reason,
        success=success,
    )
    return TrajectoryGroup(group_id, seed, (trajectory,))


def _silent_turn(
    observation: str, seen: tuple[str, str], actions: tuple[str, ...], reward: float
) -> Turn:
    """Record a turn in which nothing was said."""
    return Turn(
        prompt_ids=(),
        completion=Completion((), (), (), stopped=True),
        observation=observation,
        state_hash=seen[0],
        anchor_key=seen[1],
        response="",
        thought="",
        thought_tokens=0,
        actions=actions,
        rewards={"env": reward},
        is_valid=True,
        is_true=None,
    )
