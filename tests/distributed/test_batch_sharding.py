"""The assignment of trajectories to optimizer batches and ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ragen_pl.distributed import batch_sharding
from ragen_pl.distributed.batch_sharding import (
    assign_batches,
    balance_by_tokens,
    concatenate_batches,
    optimizer_batches,
    regroup,
)
from ragen_pl.types import RolloutBatch, TrainingBatch
from tests.support import toy_worlds as worlds
from tests.support.ranks import on_ranks


def annotated(rollout: RolloutBatch) -> TrainingBatch:
    """Return a batch in which every number identifies its trajectory and token."""
    length = rollout.input_ids.shape[1]
    number = rollout.trajectory_ids[:, None] + torch.arange(length) / 100
    old_log_probs, values, advantages, returns = (
        (number + column) * rollout.loss_mask for column in range(4)
    )
    return TrainingBatch(rollout, old_log_probs, values, advantages, returns)


@given(st.lists(st.integers(1, 400), max_size=40), st.integers(1, 5))
def test_ranks_differ_by_at_most_one_trajectory(tokens: list[int], ranks: int) -> None:
    lengths = torch.tensor(tokens, dtype=torch.long)
    chosen = balance_by_tokens(lengths, ranks)
    loads = [int(lengths[chosen == rank].sum()) for rank in range(ranks)]
    assert sum(loads) == sum(tokens)
    assert max(loads) - min(loads) <= max(tokens, default=0)


def test_trajectories_of_one_rank_are_spread_over_all() -> None:
    """Groups 0 and 1 are kept; the dropped group 2 is balanced by itself, as long as it is."""
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    kept = groups < 2
    tokens = torch.tensor([10, 20, 20, 10, 900, 900])
    assigned = assign_batches(groups, kept, tokens, batches=1, ranks=2)
    for chosen, share in ((kept, 30), (~kept, 900)):
        for rank in range(2):
            assert int(tokens[chosen & (assigned.rank == rank)].sum()) == share


def test_groups_stay_together_and_kept_ones_are_spread_over_the_batches() -> None:
    groups = torch.arange(6).repeat_interleave(2)
    kept = (groups == 3) | (groups == 5)
    assigned = assign_batches(groups, kept, torch.ones_like(groups), batches=2, ranks=3)
    per_group = assigned.batch.view(6, 2)
    assert torch.equal(per_group[:, 0], per_group[:, 1])
    assert per_group[3, 0] != per_group[5, 0]
    assert assigned.batch.bincount().tolist() == [6, 6]


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_exchange_what_one_process_would_hold(
    ranks: int, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row arrives once and complete, in the same optimizer batch, from any rank; all rows of
    a trajectory arrive on one rank, in order."""
    rollout = worlds.collection(seed=1, sizes=(3, 2, 4, 2), cuts=cuts)
    assert bool(rollout.sequence_index.any()) == cuts
    alone = optimizer_batches(annotated(rollout), 2)
    parts = [rollout.rows(rollout.group_ids % ranks == rank) for rank in range(ranks)]
    shares = [annotated(part.cut(int(part.attention_mask.sum(1).max()))) for part in parts]
    together = on_ranks(
        ranks, lambda rank: optimizer_batches(shares[rank], 2), monkeypatch, batch_sharding
    )
    for number, whole in enumerate(alone):
        found = concatenate_batches([batches[number] for batches in together])
        order = torch.argsort(found.rollout.trajectory_ids, stable=True)
        assert_equal(found.rows(order), whole)
        ids = [set(b[number].rollout.trajectory_ids.tolist()) for b in together]
        assert len(set.union(*ids)) == sum(map(len, ids))
        tokens = [int(b[number].rollout.attention_mask.sum()) for b in together]
        of_trajectory = torch.bincount(
            torch.unique(whole.rollout.trajectory_ids, return_inverse=True)[1],
            weights=whole.rollout.lengths.float(),
        )
        assert max(tokens) - min(tokens) <= 2 * int(of_trajectory.max())


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_groups_are_made_whole_again(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient probe once passed parts of groups to estimators that compare members."""
    batch = annotated(worlds.collection(seed=1, sizes=(3, 2, 4, 2)))
    places = torch.arange(len(batch)) % ranks
    shares = [batch.rows(places == rank) for rank in range(ranks)]
    together = on_ranks(ranks, lambda rank: regroup(shares[rank]), monkeypatch, batch_sharding)
    groups = [set(share.rollout.group_ids.tolist()) for share in together]
    assert sum(map(len, groups)) == len(set().union(*groups)) == 4
    found = concatenate_batches(together)
    order = torch.argsort(found.rollout.trajectory_ids)
    assert_equal(found.rows(order), batch.rows(torch.argsort(batch.rollout.trajectory_ids)))


def assert_equal(one: TrainingBatch, other: TrainingBatch) -> None:
    width = one.rollout.input_ids.shape[1]
    cut = replace(
        other,
        rollout=other.rollout.cut(width),
        **{
            name: getattr(other, name)[:, :width]
            for name in ("old_log_probs", "values", "advantages", "returns")
        },
    )
    for ours, theirs in zip(columns(one), columns(cut), strict=True):
        assert torch.equal(ours, theirs)


def columns(batch: TrainingBatch) -> list[Tensor]:
    rollout = batch.rollout
    own = (batch.old_log_probs, batch.values, batch.advantages, batch.returns)
    return [rollout.input_ids, rollout.loss_mask, rollout.rewards, rollout.policy_weights, *own]


def test_a_rank_without_trajectories_gets_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = worlds.collection(seed=2, sizes=(4,))
    shares = [annotated(rollout), annotated(rollout.rows(rollout.group_ids > 0))]
    parts = on_ranks(
        2, lambda rank: optimizer_batches(shares[rank], 1), monkeypatch, batch_sharding
    )
    assert [len(part) for (part,) in parts] == [2, 2]
