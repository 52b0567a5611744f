"""Actors, and the one loop in which they play."""

from __future__ import annotations

import random

import pytest

from ragen_pl.envs import Bandit, FrozenLake, Sokoban, TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.rollout.actors import ExpertActor, Move, NoisyExpertActor, RandomActor
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.episode import Episode, play_episode
from ragen_pl.types import EpisodeId, StopReason
from tests.support.faulty import FaultyLamp, always

CONFIG = RolloutConfig(max_turns=3, max_actions_per_turn=2)


def started(env: TextEnv, seed: int = 3) -> CheckedEnv:
    env.reset(seed=seed)
    return CheckedEnv(env)


@pytest.mark.parametrize("env", [Sokoban(), FrozenLake(), Bandit("named")])
def test_the_expert_s_move_is_its_turn(env: TextEnv) -> None:
    for limit in (1, 3):
        thought, actions = started(env).expert_turn(random.Random(5), limit)
        assert ExpertActor().act(started(env), random.Random(5), limit) == Move(actions, thought)


def test_random_moves_are_full_turns_of_known_actions() -> None:
    rng, env = random.Random(0), started(Sokoban())
    moves = [RandomActor().act(env, rng, 2) for _ in range(100)]
    assert {len(move.actions) for move in moves} == {2}
    assert {action for move in moves for action in move.actions} == set(Sokoban.actions)
    assert not any(move.thought or move.is_random for move in moves)


def test_a_noisy_expert_thinks_what_it_does_not_do() -> None:
    rng, env = random.Random(0), started(Sokoban(), seed=19)
    (expert,) = {ExpertActor().act(env, rng, 2) for _ in range(9)}
    moves = [NoisyExpertActor(0.3).act(env, rng, 2) for _ in range(400)]
    assert {move.thought for move in moves} == {expert.thought}
    assert {len(move.actions) for move in moves} == {len(expert.actions)}
    assert 0.2 < sum(move.is_random for move in moves) / len(moves) < 0.4
    assert all(move == expert for move in moves if not move.is_random)
    assert not any(NoisyExpertActor(0.0).act(env, rng, 2).is_random for _ in range(99))


def test_an_episode_without_text_has_silent_turns() -> None:
    episode_id = EpisodeId(-1, 4, 2)
    episode = Episode(Sokoban(), CONFIG, seed=19, noise_seed=0, episode_id=episode_id)
    moves = play_episode(episode, RandomActor(), random.Random(0))
    played = episode.trajectory()
    assert (played.group_id, played.member, played.seed) == (4, 2, 19)
    assert played.stop_reason is StopReason.MAX_TURNS
    assert [turn.actions for turn in played.turns] == [move.actions for move in moves]
    assert played.token_ids == played.loss_mask == ()
    assert {tuple(turn.rewards) for turn in played.turns} == {("env",)}
    assert not episode.begin_turn(), "it has ended"


def test_an_actor_that_fails_ends_its_episode() -> None:
    env = FaultyLamp("expert_turn", RuntimeError("it broke"), always)
    episode = Episode(env, CONFIG, seed=0, noise_seed=0, episode_id=EpisodeId(-1, 0, 0))
    assert not play_episode(episode, ExpertActor(), random.Random(0))
    played = episode.trajectory()
    assert played.stop_reason is StopReason.ENV_ERROR
    assert "expert_turn raised RuntimeError: it broke" in played.error
    assert played.final_state == {}
