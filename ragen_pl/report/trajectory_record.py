"""Trajectories as plain data: one JSON object with messages, tokens, rewards and metrics."""

from __future__ import annotations

import copy
from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError, calling
from ragen_pl.rollout.chat import Dialogue
from ragen_pl.types import Trajectory, Turn


def trajectory_record(trajectory: Trajectory, chat: Dialogue, system: str) -> dict[str, Any]:
    """Return a trajectory in JSON types; ``token_ids``, ``loss_mask`` and ``log_probs`` have equal
    lengths.

    Args:
        trajectory: The episode.
        chat: The chat protocol; its forced opening tag is part of the assistant messages.
        system: Text of the system message.
    """
    messages = [{"role": "system", "content": system}]
    log_probs: list[float] = []
    for turn in trajectory.turns:
        log_probs += [0.0] * len(turn.prompt_ids)
        log_probs += [round(p, 6) for p in turn.completion.log_probs]
        messages += [
            {"role": "user", "content": turn.observation},
            {"role": "assistant", "content": chat.opening_tag + turn.response},
        ]
    return {
        "env": trajectory.env_name,
        "seed": trajectory.seed,
        "group": trajectory.group_id,
        "member": trajectory.member,
        "difficulty": trajectory.difficulty,
        "messages": messages,
        "token_ids": list(trajectory.token_ids),
        "loss_mask": [int(sampled) for sampled in trajectory.loss_mask],
        "log_probs": log_probs,
        "turns": [_turn_record(turn) for turn in trajectory.turns],
        "metrics": {
            "success": trajectory.success,
            "return": trajectory.total_reward,
            "num_turns": len(trajectory.turns),
            "num_actions": sum(len(turn.actions) for turn in trajectory.turns),
            "stop_reason": str(trajectory.stop_reason),
            "error": trajectory.error,
        },
        "initial_state": dict(trajectory.initial_state),
        "final_state": dict(trajectory.final_state),
    }


def _turn_record(turn: Turn) -> dict[str, Any]:
    entropies = turn.completion.entropy_estimates
    return {
        "thought": turn.thought,
        "actions": list(turn.actions),
        "rewards": dict(turn.rewards),
        "is_valid": turn.is_valid,
        "thought_correct": turn.thought_correct,
        "stopped": turn.completion.stopped,
        "entropy": sum(entropies) / len(entropies) if entropies else 0.0,
    }


def system_message(env: TextEnv, seed: int, chat: Dialogue) -> str:
    """Return the system message at an initial state; empty if the environment fails to give it.

    It may depend on that state: a bandit's names the arms. The environment itself is not reset.
    """
    env = copy.deepcopy(env)
    try:
        CheckedEnv(env).reset(seed, noise_seed=0)
        with calling("instruction"):
            return chat.system_text(env)
    except EnvError:  # recorded in its trajectories
        return ""
