"""A rehearsal: advantages and policy loss of a small made-up rollout, computed before a run.

An estimator or a loss of one's own first runs after the warm start, minutes or an hour into a run.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch

from ragen_pl.algorithms.checked_loss import chosen_tokens, loss_of_chosen, loss_per_token
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.env_losses import losses_of_rows
from ragen_pl.rollout.packing import pack
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import (
    Completion,
    RolloutBatch,
    StopReason,
    TrainingBatch,
    Trajectory,
    Turn,
)

_GROUPS = 2
_RESPONSE = 4
"""Sampled tokens of a turn, of which the first two are its thought."""


def rehearse(algorithm: Algorithm, group_size: int, envs: Sequence[str]) -> None:
    """Compute an algorithm's advantages and policy loss once; every rank must call it.

    Neither the algorithm nor the global random state is changed.

    Args:
        algorithm: The algorithm.
        group_size: Trajectories of a group.
        envs: Names of the environments of a mixture; empty without one.

    Raises:
        ConfigError: if its estimator or its loss raises or returns what it must not.
    """
    algorithm = copy.deepcopy(algorithm)
    rollout = _made_up(group_size, envs)
    old = rollout.sampled_log_probs
    values = torch.zeros_like(old) if algorithm.critic is None else 0.5 * rollout.loss_mask
    with torch.random.fork_rng(devices=()):
        advantages, returns = compute_advantages(rollout, values, algorithm)
        batch = TrainingBatch(rollout, old, values, advantages, returns)
        for policy_loss, rows in losses_of_rows(algorithm, rollout):
            own, log_probs = batch.rows(rows), old[rows].requires_grad_()
            given = (log_probs, own.old_log_probs, own.advantages)
            loss_per_token(policy_loss, *given, own.rollout.loss_mask)
            if chosen_tokens(policy_loss, own) is not None:
                loss_of_chosen(policy_loss, *given)


def _made_up(group_size: int, envs: Sequence[str]) -> RolloutBatch:
    """Return groups of trajectories of one or two turns, of which every other one succeeds; of a
    mixture, those of each environment."""
    groups = range(_GROUPS * max(1, len(envs)))
    played = [_trajectory(group, member) for group in groups for member in range(group_size)]
    rollout = pack(played, weights=[1.0] * len(played))
    names = tuple(envs) or ("",)
    return replace(rollout, env_ids=rollout.group_ids % len(names), env_names=names)


def _trajectory(group: int, member: int) -> Trajectory:
    success = member % 2 == 0
    turns = tuple(_turn(number, success=success) for number in range(1 + member % 2))
    return Trajectory(
        group_id=group,
        member=member,
        seed=group,
        env_name="made up",
        difficulty="",
        turns=turns,
        initial_state={},
        start_key=str(group),
        final_state={},
        stop_reason=StopReason.TERMINATED,
        success=success,
    )


def _turn(number: int, *, success: bool) -> Turn:
    log_probs = tuple(-0.5 - 0.1 * place for place in range(_RESPONSE))
    return Turn(
        prompt_ids=(1, 2, 3),
        completion=Completion(tuple(range(4, 4 + _RESPONSE)), log_probs, None, stopped=True),
        anchor_key=str(number),
        observation="",
        message="",
        state=None,
        response="",
        thought="",
        thought_tokens=2,
        actions=(),
        reached_keys=(),
        rewards={"env": float(success), "thought": 0.25},
        thought_reward=0.25,
        format_fault=None,
        thought_correct=None,
        thought_grounding=None,
    )
