"""Effective sample sizes in closed form, and trajectories of several rows as one weight."""

from __future__ import annotations

import math

import pytest
import torch

from ragen_pl.ops.policy_change import effective_share, trajectory_log_weights


def logs(*weights: float) -> torch.Tensor:
    return torch.tensor(weights, dtype=torch.float64).log()


@pytest.mark.parametrize("count", [1, 3, 8])
def test_equal_weights_all_count(count: int) -> None:
    assert effective_share(logs(*[0.3] * count)) == pytest.approx(1.0)


def test_one_weight_that_is_all_counts_alone() -> None:
    assert effective_share(logs(1.0, 1e-30, 1e-30, 1e-30)) == pytest.approx(1 / 4)


def test_the_share_by_its_definition_whatever_the_scale() -> None:
    weights = (0.5, 1.0, 2.5)
    share = sum(weights) ** 2 / (3 * sum(w * w for w in weights))
    assert effective_share(logs(*weights)) == pytest.approx(share)
    assert effective_share(logs(*weights) - 800.0) == pytest.approx(share)  # exp would be 0
    assert math.isnan(effective_share(logs()))


def test_log_weights_are_sums_over_the_rows_of_a_trajectory() -> None:
    old = torch.zeros(4, 3)
    new = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0], [-1.0, -1.0, -1.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    found = trajectory_log_weights(new, old, mask, torch.tensor([7, 7, 2, 5]))
    assert found.tolist() == [-3.0, 7.0]  # in the order of ids 2 and 7; 5 sampled nothing
