"""Random play and the expert under the agent's budgets."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.rollout.baselines import BASELINES, play_baseline
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.types import StopReason
from tests.support.faulty import FaultyLamp
from tests.support.lamps import Stairs

RANDOM, EXPERT = BASELINES
CONFIG = RolloutConfig(max_turns=5, max_actions_per_turn=3)


class FreeText(Sokoban):
    """Sokoban that would take any text, and has no expert."""

    actions = None  # type: ignore[assignment]
    expert_turn = TextEnv.expert_turn


def test_the_expert_solves_every_room_within_the_budgets() -> None:
    env = Sokoban(split="eval")
    for seed in range(60):
        (played,) = play_baseline(env, seed, seed, CONFIG, EXPERT).trajectories
        _, info = env.reset(seed=seed)
        assert played.success
        assert played.stop_reason is StopReason.TERMINATED
        assert sum(len(turn.actions) for turn in played.turns) == info["optimal_length"]
        assert all(1 <= len(turn.actions) <= 3 for turn in played.turns)


def test_turns_chain_and_budgets_bind() -> None:
    config = RolloutConfig(max_turns=2, max_actions_per_turn=3)
    reasons = set()
    for seed in range(40):
        (played,) = play_baseline(Sokoban(), seed, 0, config, RANDOM).trajectories
        reasons.add(played.stop_reason)
        assert len(played.turns) <= 2
        env = Sokoban()
        env.reset(seed=seed)
        for turn in played.turns:
            assert turn.observation == env.render_text()
            assert turn.anchor_key == env.anchor_key()
            for action in turn.actions:
                env.step(action)
        assert env.get_state() == played.final_state
    assert StopReason.MAX_TURNS in reasons


def test_an_expert_of_free_text_gives_one_action_a_turn_as_the_agent_does() -> None:
    class Spoken(Stairs):
        actions = None  # type: ignore[assignment]

    config = RolloutConfig(max_turns=1, max_actions_per_turn=2)
    (named,) = play_baseline(Stairs(), 0, 0, config, EXPERT).trajectories
    (spoken,) = play_baseline(Spoken(), 0, 0, config, EXPERT).trajectories
    assert [len(turn.actions) for turn in named.turns] == [2]
    assert [len(turn.actions) for turn in spoken.turns] == [1]


def test_random_moves_rarely_solve_what_the_expert_does() -> None:
    wins = {
        baseline.name: sum(
            play_baseline(FrozenLake(), seed, 0, CONFIG, baseline).trajectories[0].success
            for seed in range(100)
        )
        for baseline in BASELINES
    }
    assert wins["random"] < 40 < 60 < wins["expert"]


def test_a_bandit_ends_after_one_action() -> None:
    (played,) = play_baseline(Bandit(), 3, 0, CONFIG, RANDOM).trajectories
    assert [len(turn.actions) for turn in played.turns] == [1]


def test_baselines_exist_only_where_they_can_play() -> None:
    assert all(baseline.can_play(Sokoban()) for baseline in BASELINES)
    assert not any(baseline.can_play(FreeText()) for baseline in BASELINES)
    assert Sokoban().expert_turn(random.Random(0), 1)


@pytest.mark.parametrize(
    ("method", "instead", "told"),
    [
        ("reset", RuntimeError("it broke"), "reset raised RuntimeError: it broke"),
        ("get_state", RuntimeError("it broke"), "get_state raised"),
        ("state_hash", RuntimeError("it broke"), "start_key raised"),  # which asks for it
        ("step", RuntimeError("it broke"), "step raised"),
        ("reward", math.nan, "step returned nan"),
        ("expert_turn", ("", ("north",)), "expert_turn returned 'north'"),
        ("expert_turn", ("", ()), "from 1 to 3 actions"),
    ],
)
def test_an_episode_that_fails_is_left_out(method: str, instead: Any, told: str) -> None:
    env = FaultyLamp(method, instead)
    (sound,) = play_baseline(env, 2, 0, CONFIG, EXPERT).trajectories
    assert sound.counts
    (broken,) = play_baseline(env, 3, 1, CONFIG, EXPERT).trajectories
    assert (broken.stop_reason, broken.success) == (StopReason.ENV_ERROR, False)
    assert told in broken.error
