"""Slips, values, plans and the optimum under the turn protocol on the frozen lake."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import get_args

import pytest

from ragen_pl.envs.boards import BoardSplit
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.frozen_lake.search import (
    ACTIONS,
    action_values,
    distances,
    neighbor,
    optimum,
    reaches_goal,
)

CORRIDOR = {"size": 4, "holes": [4, 5, 6, 8, 9, 10], "goal": 3, "player": 0, "num_actions": 0}
"""A top row with holes below it: ``P__G`` over ``OOO_``, twice, and ice."""


@pytest.mark.parametrize("intended", [1 / 3, 0.8])
def test_slips_have_the_stated_odds(intended: float) -> None:
    env = FrozenLake(intended=intended)
    taken: Counter[str] = Counter()
    for noise_seed in range(3000):
        env.reset(seed=0, options={"noise_seed": noise_seed})
        taken[env.step("Down")[4]["taken"]] += 1
    assert taken["Up"] == 0
    assert taken["Down"] / 3000 == pytest.approx(intended, abs=0.03)
    assert taken["Left"] / 3000 == pytest.approx((1 - intended) / 2, abs=0.03)


def test_members_slip_independently() -> None:
    env = FrozenLake(intended=1 / 3)
    ends = set()
    for noise_seed in range(16):
        env.reset(seed=0, options={"noise_seed": noise_seed})
        ends.add(env.step("Down")[0])
    assert len(ends) > 1


def test_goal_and_hole_end_the_trajectory() -> None:
    env = FrozenLake(intended=1.0)
    env.set_state({**CORRIDOR, "player": 2})
    observation, reward, terminated, _, info = env.step("Right")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert observation.startswith("___√")
    env.set_state(CORRIDOR)
    observation, reward, terminated, _, info = env.step("Down")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert observation == "___G\nXOO_\nOOO_\n____"


def test_starts_have_a_path_and_splits_share_none() -> None:
    keys: dict[str, set[str]] = {}
    for split in get_args(BoardSplit):
        env = FrozenLake(split=split)
        keys[split] = set()
        for seed in range(300):
            _, info = env.reset(seed=seed)
            assert 1 <= info["optimal_length"] <= env.max_actions
            assert info["difficulty"] in ("1-2", "3-4", "5+")
            keys[split].add(env.start_key())
    assert not any(a & b for a, b in combinations(keys.values(), 2))


def test_values_agree_with_simulation() -> None:
    env = FrozenLake(intended=0.6)
    for seed in (1, 4):
        env.reset(seed=seed)
        lake, start = env._lake, env.get_state()["player"]
        table = action_values(lake, 10)
        wins, count = 0, 3000
        for noise_seed in range(count):
            env.reset(seed=seed, options={"noise_seed": noise_seed})
            for left in range(10, 0, -1):
                best = table[left][:, env.get_state()["player"]].argmax()
                _, _, terminated, _, info = env.step(ACTIONS[best])
                if terminated:
                    break
            wins += info["success"]
        assert wins / count == pytest.approx(table[10][:, start].max(), abs=0.03)


def test_one_action_a_turn_is_closed_loop() -> None:
    env = FrozenLake(intended=0.7)
    for seed in range(10):
        env.reset(seed=seed)
        state = env.get_state()
        closed = action_values(env._lake, 8)[8][:, state["player"]].max()
        assert env.optimal_success(state, 8, 1, 8) == pytest.approx(closed)
        assert env.optimal_success(state, 8, 4, 8) == pytest.approx(closed)


def test_more_freedom_never_hurts() -> None:
    env = FrozenLake(intended=0.7)
    for seed in range(10):
        env.reset(seed=seed)
        state = env.get_state()
        for turns in (1, 2, 4):
            by_length = [env.optimal_success(state, turns, limit, 6) for limit in (1, 2, 3, 4)]
            assert by_length == sorted(by_length)
        for limit in (1, 2, 3):
            by_turns = [env.optimal_success(state, turns, limit, 6) for turns in (1, 2, 3, 6)]
            assert by_turns == sorted(by_turns)
            by_budget = [env.optimal_success(state, 3, limit, left) for left in (1, 2, 4, 6)]
            assert by_budget == sorted(by_budget)


def test_open_loop_optimum_by_hand() -> None:
    env = FrozenLake(intended=0.8)
    state = {**CORRIDOR, "player": 2}
    # One action: straight onto the goal, or not.
    assert env.optimal_success(state, 1, 1, 1) == pytest.approx(0.8)
    # Pushing on: a slip up stays (0.1), a slip down drowns (0.1).
    assert env.optimal_success(state, 2, 1, 2) == pytest.approx(0.8 + 0.1 * 0.8)
    assert env.optimal_success(state, 1, 2, 2) == pytest.approx(0.8 + 0.1 * 0.8)
    assert env.optimal_success(CORRIDOR, 1, 2, 2) == 0.0
    dry = FrozenLake(intended=1.0)
    assert dry.optimal_success(CORRIDOR, 1, 3, 10) == pytest.approx(1.0)


def test_optimum_refuses_what_it_cannot_do() -> None:
    lake = FrozenLake()
    lake.set_state(CORRIDOR)
    with pytest.raises(ValueError, match="max_turns: 0"):
        lake.optimal_success(CORRIDOR, 0, 1)
    with pytest.raises(ValueError, match="max_actions_per_turn: 9"):
        optimum(lake._lake, 0, max_turns=2, max_actions_per_turn=9, max_actions=10)


@pytest.mark.parametrize("intended", [1 / 3, 0.8, 1.0])
def test_expert_plans_to_the_goal_and_is_near_the_optimum(intended: float) -> None:
    env, rng = FrozenLake(intended=intended), random.Random(0)
    wins, bound, count = 0, 0.0, 300
    for seed in range(count):
        env.reset(seed=seed, options={"noise_seed": seed})
        bound += env.optimal_success(env.get_state(), 10, 1)
        ended = False
        while not ended:
            thought, actions = env.expert_turn(rng, 1)
            assert env.thought_correct(thought)
            _, _, terminated, truncated, info = env.step(actions[0])
            ended = terminated or truncated
        wins += info["success"]
    assert wins >= 0.85 * bound
    if intended == 1.0:
        assert wins == count


def test_truth_of_thoughts() -> None:
    env = FrozenLake(intended=1.0)
    env.set_state(CORRIDOR)
    assert env.expert_turn(random.Random(0), 2) == (
        "P(0,0) G(0,3) Right Right Right",
        ("Right", "Right"),
    )
    assert env.thought_correct("P(0,0) G(0,3) Up Right Right Right")
    for lie in (
        "P(0,0) G(0,3) Right Right",
        "P(0,0) G(0,3) Down Right Right Right",
        "P(0,1) G(0,3) Right Right",
        "P(0,0) G(0,3) stuck",
        "P(0,0) G(0,3) Right Right Right Right",
        "P(0,0) G(0,3)",
        "",
    ):
        assert not env.thought_correct(lie)
    env.set_state({**CORRIDOR, "num_actions": 8})
    assert env.thought_correct("P(0,0) G(0,3) stuck")
    assert env.expert_turn(random.Random(0), 2)[0].endswith("stuck")


def test_distances_walk_around_holes() -> None:
    env = FrozenLake()
    env.set_state({**CORRIDOR, "player": 12})
    away = distances(env._lake)
    assert away[0] == 3
    assert away[12] == 6
    assert neighbor(4, 0, ACTIONS.index("Left")) == 0
    assert reaches_goal(env._lake, 12, ("Right",) * 3 + ("Up",) * 3)
