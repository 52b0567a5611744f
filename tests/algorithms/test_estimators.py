"""Every advantage estimator: its definition, its invariants, and finite values in extreme cases.

A new class must be added to the table in ``tests.support.algorithms``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.algorithms import estimators
from ragen_pl.algorithms.config import Algorithm
from ragen_pl.algorithms.estimators import (
    GAE,
    RLOO,
    AdvantageEstimator,
    BiLevelGAE,
    CriticConfig,
    DrGRPO,
    GiGPO,
    ReinforcePlusPlus,
)
from ragen_pl.training.update import compute_advantages
from ragen_pl.types import RolloutBatch
from tests.support.algorithms import ESTIMATORS
from tests.support.plain_estimators import laid_out, rows_of
from tests.support.toy_worlds import at_tokens, collection, padded

each = pytest.mark.parametrize("name", ESTIMATORS)
seeds = st.integers(0, 10**6)
few = settings(max_examples=4)


def estimate(
    estimator: AdvantageEstimator,
    rollout: RolloutBatch,
    values: Tensor,
    penalty: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if estimator.critic is None:
        values = torch.zeros_like(values)
    algorithm = replace(Algorithm(), advantage=estimator)
    return compute_advantages(rollout, values, algorithm, penalty)


def advantages(estimator: AdvantageEstimator, rollout: RolloutBatch, values: Tensor) -> Tensor:
    return estimate(estimator, rollout, values)[0]


def assert_close(one: Tensor, other: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_every_estimator_is_in_the_table() -> None:
    public = {getattr(estimators, name) for name in estimators.__all__}
    kinds = {kind for kind in public if issubclass(kind, AdvantageEstimator)}
    assert {type(facts.estimator) for facts in ESTIMATORS.values()} == kinds - {AdvantageEstimator}
    for facts in ESTIMATORS.values():
        assert type(facts.undiscounted) is type(facts.estimator)


@each
@given(seed=seeds)
@few
def test_it_equals_its_definition_written_as_plain_sums(name: str, seed: int) -> None:
    """Rewards of zero, a penalty per token, dropped trajectories and groups of one included."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values, penalty = at_tokens(rollout, seed), 0.1 * at_tokens(rollout, seed + 1)
    found, returns = estimate(facts.estimator, rollout, values, penalty)
    rows = rows_of(rollout, penalty, values, whole=facts.whole)
    expected = laid_out(facts.plain(rows), rollout.loss_mask)
    assert_close(found, expected)
    assert not bool(returns[~rollout.loss_mask].any())


@each
@given(seed=seeds)
@few
def test_the_order_of_trajectories_does_not_matter(name: str, seed: int) -> None:
    estimator, rollout = ESTIMATORS[name].estimator, collection(seed)
    values = at_tokens(rollout, seed)
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(seed))
    plain, moved = (
        estimate(estimator, rollout, values),
        estimate(estimator, rollout.rows(order), values[order]),
    )
    for one, other in zip(plain, moved, strict=True):
        assert_close(other, one[order])


@each
@given(seed=seeds, columns=st.integers(1, 4))
@few
def test_padding_and_values_outside_the_mask_do_not_matter(
    name: str, seed: int, columns: int
) -> None:
    estimator, rollout = ESTIMATORS[name].estimator, collection(seed)
    values = at_tokens(rollout, seed)
    wider = padded(rollout, columns)
    off = ~wider.loss_mask
    noisy = replace(wider, rewards=wider.rewards.masked_fill(off, 1e6))
    theirs = torch.nn.functional.pad(values, (0, columns)).masked_fill(off, -1e6)
    for one, other in zip(
        estimate(estimator, rollout, values), estimate(estimator, noisy, theirs), strict=True
    ):
        assert_close(other[:, : one.shape[1]], one)
        assert not bool(other[off].any())


@each
@given(seed=seeds, context=st.integers(1, 9))
@few
def test_the_length_of_observations_does_not_matter(name: str, seed: int, context: int) -> None:
    estimator = ESTIMATORS[name].estimator
    short, long = collection(seed), collection(seed, context=context)
    one, other = (estimate(estimator, r, at_tokens(r, seed)) for r in (short, long))
    for ours, theirs in zip(one, other, strict=True):
        assert_close(theirs[long.loss_mask], ours[short.loss_mask])


def last_tokens(rollout: RolloutBatch) -> Tensor:
    return rollout.loss_mask & (rollout.loss_mask.flip(1).cumsum(1).flip(1) == 1)


@each
@given(seed=seeds, shift=st.floats(-5, 5))
@few
def test_a_shift_of_all_returns_changes_nothing_without_discounts(
    name: str, seed: int, shift: float
) -> None:
    """Values of a critic are shifted, too."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values = at_tokens(rollout, seed)
    moved = replace(rollout, rewards=rollout.rewards + shift * last_tokens(rollout))
    plain = advantages(facts.undiscounted, rollout, values)
    assert_close(
        advantages(facts.undiscounted, moved, values + shift * rollout.loss_mask), plain, 1e-6
    )


@each
@given(seed=seeds, scale=st.sampled_from([0.5, 4.0, 32.0]))
@few
def test_a_scale_of_all_returns_scales_advantages_or_cancels(
    name: str, seed: int, scale: float
) -> None:
    """Up to the epsilons in divisions by a standard deviation."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values = at_tokens(rollout, seed)
    plain, found = (
        advantages(
            facts.undiscounted, replace(rollout, rewards=unit * rollout.rewards), unit * values
        )
        for unit in (100, 100 * scale)
    )
    torch.testing.assert_close(found, plain * scale**facts.degree, atol=1e-6, rtol=1e-3)


def with_distinct_states(rollout: RolloutBatch) -> RolloutBatch:
    """Return a rollout in which no state occurs twice."""
    turns = 10 * torch.arange(len(rollout))[:, None] + rollout.turn_index
    return replace(rollout, state_ids=turns)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_members_with_equal_returns_have_no_advantage(name: str, dtype: torch.dtype) -> None:
    """Also when the rewards differ, and their sums are not exact in float32."""
    facts, rollout = ESTIMATORS[name], collection(3, sizes=(4, 4))
    rewards = torch.zeros_like(rollout.rewards)
    for row, at in enumerate(last_tokens(rollout)):
        first = torch.nonzero(rollout.turn_ends[row])[0]
        rewards[row, first] = 10.9 + 0.3 * row
        rewards[row, at] -= 0.3 * row
    equal = replace(with_distinct_states(rollout), rewards=rewards.to(dtype))
    found = advantages(facts.estimator, equal, torch.zeros_like(equal.rewards))
    assert bool(found.isfinite().all())
    if facts.compares:
        assert not bool(found.any())


@each
def test_a_group_of_one_has_no_group_relative_advantage(name: str) -> None:
    facts, rollout = ESTIMATORS[name], with_distinct_states(collection(5, sizes=(1, 1, 1)))
    found = advantages(facts.estimator, rollout, at_tokens(rollout, 5))
    assert bool(found.isfinite().all())
    if facts.compares:
        assert not bool(found.any())


@each
def test_a_group_without_some_members_is_a_smaller_group(name: str) -> None:
    """Group-relative advantages depend on the group only; whitening depends on all trajectories."""
    facts, rollout = ESTIMATORS[name], collection(8, sizes=(4, 3))
    left = rollout.rows(torch.tensor([0, 2, 4, 5, 6]))
    values = at_tokens(rollout, 8)[[0, 2, 4, 5, 6]]
    found = advantages(facts.estimator, left, values)
    rows = rows_of(left, torch.zeros_like(values), values, whole=facts.whole)
    assert_close(found, laid_out(facts.plain(rows), left.loss_mask))
    if facts.compares:
        alone = advantages(facts.estimator, left.rows(torch.arange(2)), values[:2])
        assert_close(found[:2], alone)


@each
@pytest.mark.parametrize("kept", [0, 1])
def test_values_are_finite_where_all_or_almost_all_is_filtered(name: str, kept: int) -> None:
    facts, rollout = ESTIMATORS[name], collection(9)
    weights = (torch.arange(len(rollout)) < kept).float()
    filtered = replace(rollout, policy_weights=weights)
    for found in estimate(facts.estimator, filtered, at_tokens(rollout, 9)):
        assert bool(found.isfinite().all())


@each
def test_the_critics_targets_are_reward_to_go(name: str) -> None:
    """Also without a critic, as a metric, and for dropped trajectories."""
    facts, rollout = ESTIMATORS[name], collection(2)
    values = torch.zeros_like(rollout.rewards)
    _, returns = estimate(facts.undiscounted, rollout, values)
    if isinstance(facts.undiscounted, GAE):
        full_trace = replace(facts.undiscounted, gae_lambda=1.0)
        _, returns = estimate(full_trace, rollout, values)
    rows = rows_of(rollout, values, values, whole=facts.whole)
    expected = [[sum(row.rewards[t:]) for t in range(len(row.rewards))] for row in rows]
    assert_close(returns, laid_out(expected, rollout.loss_mask))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GAE(gamma=1.1), "gamma is 1.1"),
        (lambda: GAE(gae_lambda=-0.1), "gae_lambda is -0.1"),
        (lambda: BiLevelGAE(gae_lambda=1.1), "gae_lambda is 1.1"),
        (lambda: BiLevelGAE(turn_gamma=1.1), "turn_gamma is 1.1"),
        (lambda: ReinforcePlusPlus(gamma=-1.0), "gamma is -1.0"),
        (lambda: GiGPO(turn_gamma=1.1), "turn_gamma is 1.1"),
        (lambda: GiGPO(step_weight=-1.0), "step_weight is -1.0"),
        (lambda: DrGRPO(reward_scale=0.0), "reward_scale is 0.0"),
        (lambda: RLOO(reward_scale=-1.0), "reward_scale is -1.0"),
        (lambda: CriticConfig(lr=0.0), r"critic\.lr is 0.0"),
        (lambda: CriticConfig(value_clip=0.0), r"critic\.value_clip is 0.0"),
        (lambda: CriticConfig(value_coef=-1.0), r"critic\.value_coef is -1.0"),
    ],
)
def test_values_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
