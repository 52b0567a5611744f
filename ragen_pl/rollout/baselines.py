"""Baselines without a model, under the agent's budgets: random play and the expert."""

from __future__ import annotations

import copy
import random

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.actors import Actor, ExpertActor, RandomActor
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import Episode, play_episode
from ragen_pl.types import EpisodeId, TrajectoryGroup

BASELINES: tuple[Actor, ...] = (RandomActor(), ExpertActor())


def play_baseline(
    env: TextEnv, seed: int, group_id: int, config: RolloutConfig, actor: Actor
) -> TrajectoryGroup:
    """Play one episode with an actor, without prompts and responses, within the agent's budgets.

    If the environment fails, the episode ends as ``ENV_ERROR``. The seed of the initial state also
    seeds the environment's noise and the actor.
    """
    episode = Episode(
        copy.deepcopy(env),
        config,
        seed=seed,
        noise_seed=seed,
        episode_id=EpisodeId(-1, group_id, 0),
    )
    play_episode(episode, actor, random.Random(seed))
    return TrajectoryGroup(group_id, seed, (episode.trajectory(),))
