"""Play without a model, under the agent's budgets: what luck and what knowledge achieve."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, report
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.types import Completion, StopReason, Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True)
class Baseline:
    """Name a way to play without a model."""

    name: str
    act: Callable[[CheckedEnv, random.Random, int], tuple[str, ...]]
    """Chooses the actions of one turn, at least one and at most the given number."""
    exists: Callable[[TextEnv], bool]
    """Tells whether an environment can be played so."""


def _random_actions(env: CheckedEnv, rng: random.Random, limit: int) -> tuple[str, ...]:
    actions = env.actions
    assert actions is not None
    return tuple(rng.choice(actions) for _ in range(limit))


def _expert_actions(env: CheckedEnv, rng: random.Random, limit: int) -> tuple[str, ...]:
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
    """Play one episode, turn by turn, as far as turns and budgets allow; an environment that fails
    ends it as ``ENV_ERROR``."""
    own = CheckedEnv(copy.deepcopy(env))
    game = _Game(own, seed)
    try:
        game.play(config, baseline)
    except EnvError as fault:
        game.fail(fault)
    return TrajectoryGroup(group_id, seed, (game.trajectory(group_id),))


class _Game:
    """One episode of a baseline."""

    def __init__(self, env: CheckedEnv, seed: int) -> None:
        self.env, self.seed = env, seed
        self.turns: list[Turn] = []
        self.difficulty, self.error, self.success = "", "", False
        self.initial_state: dict[str, Any] = {}
        self.final_state: dict[str, Any] = {}
        self.stop_reason: StopReason | None = None

    def play(self, config: RolloutConfig, baseline: Baseline) -> None:
        """Play to the end."""
        env, rng = self.env, random.Random(self.seed)
        observation, info = env.reset(self.seed, self.seed)
        self.difficulty = str(info.get("difficulty", ""))
        self.initial_state, actions_left = env.state(), env.max_actions
        while self.stop_reason is None:
            anchor_key = env.anchor_key()
            limit = min(config.max_actions_per_turn, actions_left)
            actions, gained, after = self._act(baseline.act(env, rng, limit))
            self.turns.append(_silent_turn(observation, anchor_key, actions, gained))
            observation = after
            actions_left -= len(actions)
            if self.stop_reason is None and actions_left <= 0:
                self.stop_reason = StopReason.MAX_ACTIONS
            elif self.stop_reason is None and len(self.turns) >= config.max_turns:
                self.stop_reason = StopReason.MAX_TURNS
        self.final_state = env.state()

    def _act(self, wanted: tuple[str, ...]) -> tuple[tuple[str, ...], float, str]:
        """Take the actions of one turn; return those that were taken, what they earned and what is
        seen after them."""
        assert wanted
        executed, gained = 0, 0.0
        for action in wanted:
            outcome = self.env.step(action)
            executed += 1
            gained += outcome.reward
            self.success = outcome.success
            if outcome.terminated or outcome.truncated:
                ending = StopReason.TERMINATED if outcome.terminated else StopReason.MAX_ACTIONS
                self.stop_reason = ending
                break
        return wanted[:executed], gained, outcome.observation

    def fail(self, fault: EnvError) -> None:
        """End here, and say so."""
        self.stop_reason, self.success, self.error = StopReason.ENV_ERROR, False, str(fault)
        report(self.env, self.seed, fault)

    def trajectory(self, group_id: int) -> Trajectory:
        """Freeze what happened."""
        assert self.stop_reason is not None
        return Trajectory(
            group_id=group_id,
            member=0,
            seed=self.seed,
            env_name=self.env.name,
            difficulty=self.difficulty,
            turns=tuple(self.turns),
            initial_state=self.initial_state,
            final_state=self.final_state,
            stop_reason=self.stop_reason,
            success=self.success,
            error=self.error,
        )


def _silent_turn(
    observation: str, anchor_key: str, actions: tuple[str, ...], reward: float
) -> Turn:
    """Record a turn in which nothing was said."""
    return Turn(
        prompt_ids=(),
        completion=Completion((), (), (), stopped=True),
        observation=observation,
        anchor_key=anchor_key,
        response="",
        thought="",
        thought_tokens=0,
        actions=actions,
        rewards={"env": reward},
        is_valid=True,
        thought_correct=None,
    )
