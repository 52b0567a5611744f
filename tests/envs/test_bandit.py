"""Payoffs, groups, pairs and the expert of the bandit."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest

from ragen_pl.envs.bandit import PAIRS, Bandit
from tests.support.held_out import eval_seeds


@pytest.mark.parametrize(("reversed_risk", "high"), [(False, "Dragon"), (True, "Phoenix")])
def test_arms_pay_what_the_paper_says(reversed_risk: bool, high: str) -> None:
    env = Bandit(reversed_risk=reversed_risk)
    paid: dict[str, list[float]] = {"Phoenix": [], "Dragon": []}
    for name, rewards in paid.items():
        for noise_seed in range(2000):
            env.reset(seed=1, options={"noise_seed": noise_seed})
            _, reward, terminated, truncated, info = env.step(name)
            assert (terminated, truncated, info["success"]) == (True, False, name == high)
            rewards.append(reward)
    low = "Phoenix" if high == "Dragon" else "Dragon"
    assert set(paid[low]) == {0.15}
    assert set(paid[high]) == {0.0, 1.0}
    assert statistics.mean(paid[high]) == pytest.approx(0.25, abs=0.03)


def test_sides_and_pairs_follow_the_seed() -> None:
    env = Bandit("named")
    shown: Counter[tuple[str, ...]] = Counter()
    for seed in range(600):
        observation, _ = env.reset(seed=seed)
        assert observation == f"Arms: {env.actions[0]}, {env.actions[1]}"
        shown[env.actions] += 1
    assert len(shown) == 24


def test_names_of_evaluation_sets_are_new() -> None:
    for name in ("named", "teacher_engineer"):
        train, eval_set = ({n for arms in PAIRS[name][s] for n in arms} for s in ("train", "eval"))
        assert not train & eval_set
    assert len(PAIRS["named"]["train"]) == 12
    assert len(PAIRS["named"]["eval"]) == 8


def test_expert_is_indifferent() -> None:
    env, rng = Bandit(), random.Random(0)
    env.reset(seed=0)
    chosen = Counter(env.expert_turn(rng, 1)[1][0] for _ in range(400))
    assert 150 < chosen["Dragon"] < 250


def test_an_evaluation_set_of_few_starts_repeats_them() -> None:
    assert len(eval_seeds(Bandit(), 12)) == 12
    with pytest.raises(ValueError, match="size: 0"):
        eval_seeds(Bandit(), 0)


def test_only_one_pull() -> None:
    env = Bandit()
    env.reset(seed=0)
    env.step("Dragon")
    with pytest.raises(RuntimeError, match=r"Bandit\.step: .* has ended; call reset first"):
        env.step("Dragon")
