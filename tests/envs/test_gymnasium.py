"""Environments as gymnasium sees them: its own checker and its wrappers run on them as they are."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from ragen_pl.envs import SHIPPED, Bandit, Sokoban, TextEnv
from ragen_pl.envs.spaces import ActionNames, AnyText
from tests.envs.contract.test_trial_episode import Talker

KINDS = pytest.mark.parametrize("kind", SHIPPED)


@pytest.mark.filterwarnings("error")
@KINDS
def test_gymnasium_s_checker_finds_nothing(kind: type[TextEnv]) -> None:
    """Its check of render modes needs an environment registered under a name, so it is skipped."""
    check_env(kind(), skip_render_check=True)


@KINDS
def test_wrappers_run_on_them(kind: type[TextEnv]) -> None:
    env = RecordEpisodeStatistics(TimeLimit(kind(), max_episode_steps=3))
    env.action_space.seed(0)
    for seed in range(10):
        observation, _ = env.reset(seed=seed)
        total, steps, has_ended = 0.0, 0, False
        while not has_ended:
            assert observation in env.observation_space
            observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
            has_ended = terminated or truncated
            total, steps = total + float(reward), steps + 1
        assert steps <= 3
        assert terminated or steps == 3
        assert (info["episode"]["r"], info["episode"]["l"]) == (pytest.approx(total), steps)


@KINDS
def test_an_unseeded_reset_follows_from_the_last_seed(kind: type[TextEnv]) -> None:
    starts = []
    for _ in range(2):
        env = kind()
        env.reset(seed=7)
        starts.append([env.reset()[0] for _ in range(5)])
    assert starts[0] == starts[1]
    assert len(set(starts[0])) > 1


def test_the_action_space_is_what_the_start_offers() -> None:
    env = Bandit("named")
    assert isinstance(env.action_space, ActionNames)
    assert len(env.action_space.names) == 24
    env.reset(seed=0)
    assert env.action_space.names == env.actions
    assert env.actions[0] in env.action_space
    assert "Phoenix" not in env.action_space
    assert 0 not in env.action_space
    assert env.action_space == ActionNames(env) != ActionNames(Sokoban())
    mask = np.array([0, 1], dtype=np.int8)
    assert {env.action_space.sample(mask) for _ in range(9)} == {env.actions[1]}


def test_samples_of_actions_follow_their_seed_and_reach_every_one() -> None:
    space, again = Sokoban().action_space, Sokoban().action_space
    space.seed(3)
    again.seed(3)
    samples = [space.sample() for _ in range(60)]
    assert samples == [again.sample() for _ in range(60)]
    assert set(samples) == set(Sokoban.actions)


def test_free_text_takes_any_text() -> None:
    env = Talker()
    for space in (env.action_space, env.observation_space):
        assert isinstance(space, spaces.Text)
        assert all(text in space for text in ("", "√ß漢字🧊", "x" * 100_000, space.sample()))
        assert "x" * 100_001 not in space
        assert b"up" not in space
    assert AnyText(3) == AnyText(3) != AnyText(4)


def test_spaces_are_copied_with_their_environment() -> None:
    env = Bandit("named")
    env.action_space.sample()
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        other.reset(seed=4)
        assert isinstance(other.action_space, ActionNames)
        assert other.action_space.names == other.actions
        assert len(env.actions) == 24


def test_a_subclass_may_name_spaces_of_its_own() -> None:
    class Own(Talker):
        observation_space = spaces.Text(9)

        def __init__(self) -> None:
            self.action_space: Any = spaces.Text(2)

    assert (Own().observation_space, Own().action_space) == (spaces.Text(9), spaces.Text(2))
