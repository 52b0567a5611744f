"""Mixtures: the groups of each environment, its starts, and what is remembered of it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ragen_pl.rollout import mixture as mixtures
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.curriculum import TargetSuccess, Uniform, choice
from ragen_pl.rollout.mixture import Mixture, MixtureConfig, env_of_set
from ragen_pl.rollout.seeds import SEEDS_PER_RUN
from ragen_pl.rollout.start_stream import SingleEnvStream
from ragen_pl.types import TrajectoryGroup
from tests.support.doubles import make_group, make_trajectory, make_turn
from tests.support.lamps import Lamp, NamedLamp
from tests.support.ranks import on_ranks

SHARES = {"a": 3.0, "b": 1.0, "c": 0.7}


def make_mixture(groups: int = 6, **config: Any) -> Mixture:
    envs = {"a": NamedLamp(), "b": Lamp(), "c": NamedLamp()}
    return Mixture(envs, MixtureConfig(**config), Uniform(), groups=groups, run_seed=3)


def make_single() -> SingleEnvStream:
    return SingleEnvStream({"": Lamp()}, Uniform(), groups=6, first_iteration=0, run_seed=3)


def played(seeds: list[GroupSeed], lengths: dict[str, int]) -> list[TrajectoryGroup]:
    """Make a group for each seed, with trajectories of that many tokens in its environment."""
    groups = []
    for seed in seeds:
        turns = [make_turn(1.0, entropies=(0.5,) * lengths[seed.env])]
        members = tuple(make_trajectory(turns, group_id=seed.group_id) for _ in range(2))
        groups.append(TrajectoryGroup(seed.group_id, seed.seed, members, env=seed.env))
    return groups


def test_every_environment_gets_its_share_of_the_groups() -> None:
    mixture, total = make_mixture(7, shares=SHARES), Counter[str]()
    for iteration in range(400):
        counts = mixture.counts(iteration)
        assert sum(counts.values()) == 7
        for name, share in SHARES.items():
            assert abs(counts[name] - 7 * share / 4.7) < 1
        total.update(counts)
    for name, share in SHARES.items():
        assert total[name] / 2800 == pytest.approx(share / 4.7, abs=0.01)


def test_shares_are_equal_where_none_are_given() -> None:
    assert make_mixture().counts(0) == {"a": 2, "b": 2, "c": 2}


def test_shares_of_tokens_give_long_trajectories_fewer_groups() -> None:
    mixture = make_mixture(12, shares_of="tokens")
    seeds = mixture.group_seeds(0, 0)
    assert mixture.counts(0) == {"a": 4, "b": 4, "c": 4}, "nothing is known of lengths yet"
    mixture.learn(played(seeds, {"a": 10, "b": 20, "c": 20}))
    assert mixture.counts(1) == {"a": 6, "b": 3, "c": 3}


def test_each_environment_meets_the_starts_of_a_run_alone_in_their_order() -> None:
    mixture, met = make_mixture(7, shares=SHARES), {name: list[int]() for name in SHARES}
    for iteration in range(5):
        seeds = mixture.group_seeds(iteration, 0)
        assert [seed.group_id for seed in seeds] == list(range(7))
        for seed in seeds:
            met[seed.env].append(seed.seed - 3 * SEEDS_PER_RUN)
        mixture.learn(played(seeds, dict.fromkeys(SHARES, 2)))
    for starts in met.values():
        assert starts == list(range(len(starts)))


def test_further_collections_have_the_same_environments_and_other_starts() -> None:
    mixture = make_mixture(7, shares=SHARES)
    first, second = (mixture.group_seeds(2, nth) for nth in range(2))
    assert Counter(s.env for s in first) == Counter(s.env for s in second)
    assert [seed.group_id for seed in second] == list(range(7, 14))
    assert not {(s.env, s.seed) for s in first} & {(s.env, s.seed) for s in second}


def test_environments_are_spread_over_the_group_ids() -> None:
    """Optimizer batches and ranks take every n-th id."""
    mixture = make_mixture()
    seen = {
        tuple(seed.env for seed in mixture.group_seeds(iteration, 0)[::2])
        for iteration in range(40)
    }
    assert len(seen) > 10


def test_a_saved_mixture_goes_on_as_it_was() -> None:
    config = {"shares_of": "tokens", "normalize_rewards": True, "shares": SHARES}
    config["curricula"] = {"a": TargetSuccess()}
    one, other = make_mixture(7, **config), make_mixture(7, **config)
    for iteration in range(3):
        one.learn(played(one.group_seeds(iteration, 0), {"a": 4, "b": 9, "c": 2}))
    other.load_state_dict(json.loads(json.dumps(one.state_dict(3))))
    assert other.group_seeds(3, 0) == one.group_seeds(3, 0)
    assert other.reward_scales == one.reward_scales
    assert other.state_dict(3) == one.state_dict(3)


def test_a_run_goes_on_from_one_that_had_the_other_kind_of_starts() -> None:
    """Earlier versions saved an unused seed stream beside a mixture's starts."""
    mixture, alone = make_mixture(), make_single()
    begun = mixture.group_seeds(2, 0)
    mixture.load_state_dict(alone.state_dict(2))
    assert mixture.group_seeds(2, 0) == begun
    saved = {"seeds": {"iteration": 2, "position": 12}, "progress": {}, **mixture.state_dict(2)}
    mixture.load_state_dict(saved)
    assert mixture.group_seeds(2, 0) == begun
    alone.load_state_dict(mixture.state_dict(2))
    assert alone.group_seeds(2, 0)[0].seed == 3 * SEEDS_PER_RUN + 12


def test_two_ranks_know_what_one_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"shares_of": "tokens", "normalize_rewards": True}
    alone = make_mixture(**config, curricula={"a": TargetSuccess()})
    groups = played(alone.group_seeds(0, 0), {"a": 3, "b": 7, "c": 5})
    odd = [replace(make_group([0.1, 0.7 * n], group_id=n), env="b") for n in range(6, 11)]
    alone.learn([*groups, *odd])

    def work(rank: int) -> tuple[Any, Any]:
        mixture = make_mixture(**config, curricula={"a": TargetSuccess()})
        mixture.group_seeds(0, 0)
        mixture.learn([*groups, *odd][rank::2])
        return mixture.state_dict(1), mixture.group_seeds(1, 0)

    wanted = alone.state_dict(3), alone.group_seeds(1, 0)
    assert on_ranks(2, work, monkeypatch, mixtures, choice) == [wanted, wanted]


def test_rewards_are_scaled_by_the_spread_of_an_environments_returns() -> None:
    mixture = make_mixture(normalize_rewards=True)
    assert mixture.reward_scales == {"a": 1.0, "b": 1.0, "c": 1.0}
    mixture.learn(
        [replace(make_group([-10.0, 10.0]), env="a"), replace(make_group([2.0]), env="b")]
    )
    scales = mixture.reward_scales
    assert scales == {"a": pytest.approx(0.1), "b": 1.0, "c": 1.0}
    assert make_mixture().reward_scales["a"] == 1.0


def test_success_is_named_after_environment_and_difficulty() -> None:
    mixture = make_mixture(curricula={"a": TargetSuccess()})
    assert mixture.chooses_starts
    lit = make_trajectory([make_turn(1.0)], success=True, difficulty="lit")
    mixture.learn([TrajectoryGroup(0, 1, (lit,), env="a"), TrajectoryGroup(1, 1, (lit,), env="b")])
    assert mixture.running_success == {"a/lit": 1.0}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"shares": {"x": 1.0}}, "mixture.shares names 'x'"),
        ({"curricula": {"x": Uniform()}}, "mixture.curricula names 'x'"),
        ({"limits": {"x": TrajectoryLimits(max_turns=1)}}, "mixture.limits names 'x'"),
    ],
)
def test_unknown_names_are_refused(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        MixtureConfig(**config).check_names(["a", "b"])


def test_what_is_null_is_as_if_not_named() -> None:
    config: dict[str, Any] = {
        "shares": {"a": None, "b": 2.0, "x": None},
        "curricula": {"a": None, "x": None},
        "limits": {"a": None, "x": None},
    }
    MixtureConfig(**config).check_names(["a", "b", "c"])
    assert make_mixture(8, **config).counts(0) == {"a": 2, "b": 4, "c": 2}


def test_limits_are_an_environments_own() -> None:
    rollout = RolloutConfig(max_turns=5, max_actions_per_turn=3)
    config = MixtureConfig(
        limits={"a": TrajectoryLimits(max_actions_per_turn=1), "b": TrajectoryLimits(5, 3)}
    )
    assert config.rollout_in("a", rollout) == replace(rollout, max_actions_per_turn=1)
    assert config.rollout_in("b", rollout) == config.rollout_in("c", rollout) == rollout


@pytest.mark.parametrize(("key", "value", "most"), [("max_turns", 0, 5), ("max_turns", 6, 5)])
def test_limits_lie_within_those_of_the_run(key: str, value: int, most: int) -> None:
    told = rf"mixture\.limits\.a\.{key} is {value}; .* between 1 and rollout\.{key}, .* {most}"
    with pytest.raises(ValueError, match=told):
        MixtureConfig(limits={"a": TrajectoryLimits(**{key: value})}).rollout_in(
            "a", RolloutConfig()
        )


@pytest.mark.parametrize("share", [0.0, -1.0, float("inf"), float("nan")])
def test_shares_are_positive(share: float) -> None:
    with pytest.raises(ValueError, match=r"mixture\.shares\.a is"):
        MixtureConfig(shares={"a": share})


def test_an_evaluation_set_belongs_to_the_longest_name_that_it_begins_with() -> None:
    names = ["lake", "lake_large", "bandit"]
    assert env_of_set("lake_large_eval", names) == "lake_large"
    assert env_of_set("lake_eval", names) == "lake"
    assert env_of_set("sokoban", names) is None
