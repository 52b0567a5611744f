"""Advantages, filters and rewards of a mixture: within each environment, over all ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from callbacks.variance_filter import VarianceFilter
from ragen_pl.algorithms.config import Algorithm, EntropyBonus, EnvAlgorithm
from ragen_pl.algorithms.estimators import (
    GAE,
    GRPO,
    RLOO,
    AdvantageEstimator,
    BiLevelGAE,
    CriticConfig,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Success,
    group,
    trajectory,
)
from ragen_pl.distributed.batch_sharding import concatenate_batches
from ragen_pl.rollout.group_table import GroupTable
from ragen_pl.rollout.packing import pack
from ragen_pl.training import update
from ragen_pl.training.collector import scaled_by_env
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import RolloutBatch, TrajectoryGroup
from tests.support.doubles import make_trajectory, make_turn
from tests.support.ranks import on_ranks

ESTIMATORS: list[AdvantageEstimator] = [
    *(GAE(gae_lambda=0.9), BiLevelGAE(), GRPO(), DrGRPO(), RLOO(), GiGPO()),
    *(ReinforcePlusPlus(), ReinforcePlusPlusBaseline(), Success()),
]
ENVS = {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"}
SCALES = {"a": 1.0, "b": 1.0, "empty": 1.0}


def make_rollout(group_ids: list[int]) -> RolloutBatch:
    """Make two trajectories of each group, of several turns and different returns."""
    trajectories = []
    for group_id in group_ids:
        for member in range(2):
            pay = 10.0 if ENVS[group_id] == "b" else 1.0
            turns = [make_turn(pay * (group_id + 2 * member + n)) for n in range(1 + member)]
            trajectories.append(
                make_trajectory(turns, group_id=group_id, member=member, success=member == 1)
            )
    weights = [float(t.group_id != 4) for t in trajectories]
    return pack(trajectories, weights=weights)


def values_of(rollout: RolloutBatch) -> Tensor:
    """Make values that are a function of the trajectory and the token."""
    tokens = torch.arange(rollout.rewards.shape[1])
    return torch.sin(rollout.trajectory_ids[:, None] + tokens) * rollout.loss_mask


def estimate(rollout: RolloutBatch, algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    return compute_advantages(rollout, values_of(rollout), algorithm)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_each_environment_is_estimated_as_in_a_run_alone(estimator: AdvantageEstimator) -> None:
    algorithm, whole = Algorithm(advantage=estimator), make_rollout([0, 1, 2, 3, 4])
    both = estimate(scaled_by_env(whole, ENVS, SCALES), algorithm)
    for name in ("a", "b"):
        rows = torch.tensor([ENVS[g] == name for g in whole.group_ids.tolist()])
        alone = estimate(whole.rows(rows), algorithm)
        for mine, its in zip(both, alone, strict=True):
            assert torch.equal(mine[rows], its)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_two_ranks_estimate_as_one(
    estimator: AdvantageEstimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second rank has no trajectory of ``a``, and no rank has one of ``empty``."""
    algorithm, whole = Algorithm(advantage=estimator), make_rollout([0, 1, 2, 3, 4])
    wanted = estimate(scaled_by_env(whole, ENVS, SCALES), algorithm)

    def work(rank: int) -> tuple[Tensor, Tensor]:
        is_own = torch.tensor([(g == 3) == (rank == 1) for g in whole.group_ids.tolist()])
        return estimate(scaled_by_env(whole.rows(is_own), ENVS, SCALES), algorithm)

    parts = on_ranks(2, work, monkeypatch, update, group, trajectory)
    is_last = torch.tensor([g == 3 for g in whole.group_ids.tolist()])
    for place in range(2):
        for part, rows in ((parts[0], ~is_last), (parts[1], is_last)):
            torch.testing.assert_close(part[place], wanted[place][rows])


def test_an_environment_may_have_an_estimator_and_a_weight_of_its_own() -> None:
    rollout = scaled_by_env(make_rollout([0, 1, 2, 3]), ENVS, SCALES)
    own = {"b": EnvAlgorithm(advantage=GRPO(), coef=0.5)}
    advantages, returns = estimate(rollout, Algorithm(advantage=GAE(), per_env=own))
    plain, targets = estimate(rollout, Algorithm(advantage=GAE()))
    grpo, _ = estimate(rollout, Algorithm(advantage=GRPO()))
    is_b = rollout.env_ids == 1
    assert torch.equal(advantages[~is_b], plain[~is_b])
    assert torch.equal(advantages[is_b], 0.5 * grpo[is_b])
    assert torch.equal(returns, targets), "the critic has one kind of target"


def test_overrides_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"per_env\.b\.advantage is GAE, which needs a critic"):
        Algorithm(advantage=GRPO(), per_env={"b": EnvAlgorithm(advantage=GAE())})
    other = GAE(critic=CriticConfig(train_on="kept"))
    with pytest.raises(ValueError, match=r"per_env\.b\.advantage has a critic of its own"):
        Algorithm(advantage=GAE(), per_env={"b": EnvAlgorithm(advantage=other)})
    with pytest.raises(ValueError, match="coef is 0"):
        EnvAlgorithm(coef=0.0)
    with pytest.raises(ValueError, match=r"entropy_factor is -1\.0; it must be finite and not"):
        EnvAlgorithm(entropy_factor=-1.0)
    with pytest.raises(ValueError, match="kl_factor is inf; it must be finite and not negative"):
        EnvAlgorithm(kl_factor=math.inf)
    with pytest.raises(
        ValueError, match=r"per_env\.b\.kl_factor is 0\.0, but algorithm\.kl is null"
    ):
        Algorithm(per_env={"b": EnvAlgorithm(kl_factor=0.0)})
    with pytest.raises(ValueError, match=r"per_env\.b\.entropy_factor is 2\.0, but .*coef is 0"):
        Algorithm(entropy=EntropyBonus(coef=0.0), per_env={"b": EnvAlgorithm(entropy_factor=2.0)})
    algorithm = Algorithm(per_env={"b": EnvAlgorithm(advantage=GRPO())})
    algorithm.check_envs(["a", "b"])
    with pytest.raises(ValueError, match=r"per_env names 'b', but data\.envs has a, c"):
        algorithm.check_envs(["a", "c"])
    with pytest.raises(ValueError, match=r"there is no data\.envs"):
        algorithm.check_envs([])
    with pytest.raises(ValueError, match="GRPO compares a trajectory"):
        algorithm.check_groups(1)


def test_normalized_rewards_train_and_nothing_else_changes() -> None:
    plain = make_rollout([0, 1])
    scaled = scaled_by_env(plain, ENVS, {"a": 1.0, "b": 0.1})
    is_b = torch.tensor([ENVS[g] == "b" for g in plain.group_ids.tolist()])
    assert torch.equal(scaled.rewards[~is_b], plain.rewards[~is_b])
    assert torch.allclose(scaled.rewards[is_b], 0.1 * plain.rewards[is_b])
    assert torch.allclose(scaled.outcome_rewards[is_b], 0.1 * plain.outcome_rewards[is_b])
    assert torch.equal(scaled.input_ids, plain.input_ids)


def test_rows_of_a_mixture_are_exchanged_with_their_environment() -> None:
    one, other = (scaled_by_env(make_rollout(ids), ENVS, SCALES) for ids in ([0, 1], [3]))
    both = concatenate_batches([one, other])
    assert both.env_ids.tolist() == [0, 0, 1, 1, 1, 1]
    assert both.env_names == ("a", "b", "empty")


def groups() -> list[TrajectoryGroup]:
    """Make groups whose spread is ten times as large in one environment."""
    made = []
    for group_id in range(8):
        env = "ab"[group_id % 2]
        spread = (group_id + 1) * (10.0 if env == "b" else 1.0)
        members = tuple(
            make_trajectory([make_turn(spread * n)], group_id=group_id, member=n) for n in range(2)
        )
        made.append(TrajectoryGroup(group_id, 0, members, env=env))
    return made


def test_groups_compete_within_their_environment() -> None:
    made: Any = groups()
    filters = VarianceFilter(keep_fraction=0.5)
    weights = filters.weigh(GroupTable.gather(made))
    assert weights[:, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    reasons = filters.explain(GroupTable.gather(made), weights)
    assert reasons[6].endswith("rank 1 of 4; TopFraction(fraction 0.5) keeps 2 groups of a")
    assert filters.recorded["rollout/a/kept_fraction"] == 0.5
    assert filters.recorded["rollout/b/in_group_std"] > filters.recorded["rollout/a/in_group_std"]
    alone = VarianceFilter(keep_fraction=0.5)
    apart = alone.weigh(GroupTable.gather([replace(each, env="") for each in made]))
    assert apart[:, 0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert not [name for name in alone.recorded if "/a/" in name]
