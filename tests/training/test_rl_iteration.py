"""The optimizer batches of an iteration of RL."""

from __future__ import annotations

import pytest

from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training import rl_iteration
from ragen_pl.training.rl_iteration import num_optimizer_batches
from tests.support.ranks import on_ranks


def test_ranks_take_equally_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank keeps most of its share, the other little: together half of eight."""
    rollout = RolloutConfig(online_k=4, scale_updates=True)
    shares = [[[1.0, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]

    def steps(rank: int) -> int:
        return num_optimizer_batches(rollout, shares[rank])

    assert on_ranks(2, steps, monkeypatch, rl_iteration) == [2, 2]
