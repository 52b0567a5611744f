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


@pytest.mark.parametrize(
    ("kept", "collected", "most", "batches"),
    [
        (240, 240, 4, 4),
        (239, 240, 4, 4),  # an environment raised: no step the fewer
        (120, 240, 4, 2),
        (119, 240, 2, 1),
        (121, 240, 2, 2),
        (60, 240, 4, 1),
        (60, 240, 2, 1),
        (0, 240, 4, 1),
        (72, 100, 10, 8),
    ],
)
def test_steps_are_in_proportion_to_what_is_kept(
    kept: int, collected: int, most: int, batches: int
) -> None:
    weights = [[1.0] * kept, [0.0] * (collected - kept)]
    scaled = RolloutConfig(online_k=most, scale_updates=True)
    assert num_optimizer_batches(scaled, weights) == batches
    assert batches == 1 or kept / batches <= collected / most
    assert num_optimizer_batches(RolloutConfig(online_k=most), weights) == most
