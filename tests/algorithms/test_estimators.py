"""What every estimator owes: its definition, its invariants, and an answer where little is left.

A new class must be given its place in ``tests.support.algorithms``.
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


def judged(
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
    return judged(estimator, rollout, values)[0]


def agree(one: Tensor, other: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_every_estimator_is_in_the_table() -> None:
    offered = {getattr(estimators, name) for name in estimators.__all__}
    kinds = {kind for kind in offered if issubclass(kind, AdvantageEstimator)}
    assert {type(facts.estimator) for facts in ESTIMATORS.values()} == kinds - {AdvantageEstimator}
    for facts in ESTIMATORS.values():
        assert type(facts.undiscounted) is type(facts.estimator)


@each
@given(seed=seeds)
@few
def test_it_is_what_its_definition_says_sum_by_sum(name: str, seed: int) -> None:
    """Rewards of zero, a penalty per token, dropped trajectories and groups of one included."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values, penalty = at_tokens(rollout, seed), 0.1 * at_tokens(rollout, seed + 1)
    found, returns = judged(facts.estimator, rollout, values, penalty)
    rows = rows_of(rollout, penalty, values, whole=facts.whole)
    expected = laid_out(facts.plain(rows), rollout.loss_mask)
    agree(found, expected)
    assert not bool(returns[~rollout.loss_mask].any())


@each
@given(seed=seeds)
@few
def test_the_order_of_trajectories_does_not_matter(name: str, seed: int) -> None:
    estimator, rollout = ESTIMATORS[name].estimator, collection(seed)
    values = at_tokens(rollout, seed)
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(seed))
    plain, moved = (
        judged(estimator, rollout, values),
        judged(estimator, rollout.rows(order), values[order]),
    )
    for one, other in zip(plain, moved, strict=True):
        agree(other, one[order])


@each
@given(seed=seeds, columns=st.integers(1, 4))
@few
def test_padding_and_what_stands_off_the_mask_do_not_matter(
    name: str, seed: int, columns: int
) -> None:
    estimator, rollout = ESTIMATORS[name].estimator, collection(seed)
    values = at_tokens(rollout, seed)
    wider = padded(rollout, columns)
    off = ~wider.loss_mask
    noisy = replace(wider, rewards=wider.rewards.masked_fill(off, 1e6))
    theirs = torch.nn.functional.pad(values, (0, columns)).masked_fill(off, -1e6)
    for one, other in zip(
        judged(estimator, rollout, values), judged(estimator, noisy, theirs), strict=True
    ):
        agree(other[:, : one.shape[1]], one)
        assert not bool(other[off].any())


@each
@given(seed=seeds, context=st.integers(1, 9))
@few
def test_the_length_of_observations_does_not_matter(name: str, seed: int, context: int) -> None:
    estimator = ESTIMATORS[name].estimator
    short, long = collection(seed), collection(seed, context=context)
    one, other = (judged(estimator, r, at_tokens(r, seed)) for r in (short, long))
    for ours, theirs in zip(one, other, strict=True):
        agree(theirs[long.loss_mask], ours[short.loss_mask])


def last_tokens(rollout: RolloutBatch) -> Tensor:
    return rollout.loss_mask & (rollout.loss_mask.flip(1).cumsum(1).flip(1) == 1)


@each
@given(seed=seeds, shift=st.floats(-5, 5))
@few
def test_a_shift_of_all_returns_changes_nothing_without_discounts(
    name: str, seed: int, shift: float
) -> None:
    """Where there is a critic, it knows of the shift."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values = at_tokens(rollout, seed)
    moved = replace(rollout, rewards=rollout.rewards + shift * last_tokens(rollout))
    plain = advantages(facts.undiscounted, rollout, values)
    agree(advantages(facts.undiscounted, moved, values + shift * rollout.loss_mask), plain, 1e-6)


@each
@given(seed=seeds, scale=st.sampled_from([0.5, 4.0, 32.0]))
@few
def test_a_scale_of_all_returns_changes_as_little_as_it_may(
    name: str, seed: int, scale: float
) -> None:
    """Only through the epsilons in what is divided by a spread."""
    facts, rollout = ESTIMATORS[name], collection(seed)
    values = at_tokens(rollout, seed)
    plain, found = (
        advantages(
            facts.undiscounted, replace(rollout, rewards=unit * rollout.rewards), unit * values
        )
        for unit in (100, 100 * scale)
    )
    torch.testing.assert_close(found, plain * scale**facts.degree, atol=1e-6, rtol=1e-3)


def strangers(rollout: RolloutBatch) -> RolloutBatch:
    """Let no state be met twice."""
    turns = 10 * torch.arange(len(rollout))[:, None] + rollout.turn_index
    return replace(rollout, state_ids=turns)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_members_who_earned_the_same_are_told_nothing(name: str, dtype: torch.dtype) -> None:
    """Though what they earned was made up of different rewards, and float32 cannot add these."""
    facts, rollout = ESTIMATORS[name], collection(3, sizes=(4, 4))
    rewards = torch.zeros_like(rollout.rewards)
    for row, at in enumerate(last_tokens(rollout)):
        first = torch.nonzero(rollout.turn_ends[row])[0]
        rewards[row, first] = 10.9 + 0.3 * row
        rewards[row, at] -= 0.3 * row
    equal = replace(strangers(rollout), rewards=rewards.to(dtype))
    found = advantages(facts.estimator, equal, torch.zeros_like(equal.rewards))
    assert bool(found.isfinite().all())
    if facts.compares:
        assert not bool(found.any())


@each
def test_alone_it_is_told_nothing_by_comparison(name: str) -> None:
    facts, rollout = ESTIMATORS[name], strangers(collection(5, sizes=(1, 1, 1)))
    found = advantages(facts.estimator, rollout, at_tokens(rollout, 5))
    assert bool(found.isfinite().all())
    if facts.compares:
        assert not bool(found.any())


@each
def test_a_group_that_lost_members_is_as_if_it_had_been_smaller(name: str) -> None:
    """What compares within groups sees nothing of the others; what whitens, only all together."""
    facts, rollout = ESTIMATORS[name], collection(8, sizes=(4, 3))
    left = rollout.rows(torch.tensor([0, 2, 4, 5, 6]))
    values = at_tokens(rollout, 8)[[0, 2, 4, 5, 6]]
    found = advantages(facts.estimator, left, values)
    rows = rows_of(left, torch.zeros_like(values), values, whole=facts.whole)
    agree(found, laid_out(facts.plain(rows), left.loss_mask))
    if facts.compares:
        alone = advantages(facts.estimator, left.rows(torch.arange(2)), values[:2])
        agree(found[:2], alone)


@each
@pytest.mark.parametrize("kept", [0, 1])
def test_where_all_or_almost_all_is_filtered_the_rest_is_finite(name: str, kept: int) -> None:
    facts, rollout = ESTIMATORS[name], collection(9)
    weights = (torch.arange(len(rollout)) < kept).float()
    filtered = replace(rollout, policy_weights=weights)
    for found in judged(facts.estimator, filtered, at_tokens(rollout, 9)):
        assert bool(found.isfinite().all())


@each
def test_the_critics_targets_are_what_is_left_to_earn(name: str) -> None:
    """Without a critic they are the plain sum, for the record; dropped trajectories have theirs."""
    facts, rollout = ESTIMATORS[name], collection(2)
    values = torch.zeros_like(rollout.rewards)
    _, returns = judged(facts.undiscounted, rollout, values)
    if isinstance(facts.undiscounted, GAE):
        full_trace = replace(facts.undiscounted, gae_lambda=1.0)
        _, returns = judged(full_trace, rollout, values)
    rows = rows_of(rollout, values, values, whole=facts.whole)
    expected = [[sum(row.rewards[t:]) for t in range(len(row.rewards))] for row in rows]
    agree(returns, laid_out(expected, rollout.loss_mask))


@pytest.mark.parametrize(
    ("make", "told"),
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
def test_values_out_of_range_are_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
