"""What luck and the expert achieve under the agent's budgets."""

from __future__ import annotations

import random

from ragen_pl.baselines import BASELINES, play_baseline
from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.frozen_lake import FrozenLake
from ragen_pl.envs.sokoban import Sokoban
from ragen_pl.rollout_config import RolloutConfig
from ragen_pl.types import StopReason

RANDOM, EXPERT = BASELINES
CONFIG = RolloutConfig(max_turns=5, max_actions_per_turn=3)


class FreeText(Sokoban):
    """Sokoban that would take any text, and has no expert."""

    actions = None  # type: ignore[assignment]
    expert_turn = TextEnv.expert_turn


def test_the_expert_solves_every_room_within_the_budgets() -> None:
    env = Sokoban(split="panel")
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
            assert (turn.state_hash, turn.anchor_key) == (env.state_hash(), env.anchor_key())
            for action in turn.actions:
                env.step(action)
        assert env.get_state() == played.final_state
    assert StopReason.MAX_TURNS in reasons


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
    assert all(baseline.exists(Sokoban()) for baseline in BASELINES)
    assert not any(baseline.exists(FreeText()) for baseline in BASELINES)
    assert Sokoban().expert_turn(random.Random(0), 1)
