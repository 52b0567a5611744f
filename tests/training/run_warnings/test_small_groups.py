"""Groups of two are named before a run whose algorithm compares members."""

from __future__ import annotations

import pytest

from ragen_pl.algorithms.config import Algorithm, EnvAlgorithm
from ragen_pl.algorithms.estimators import GAE, GRPO
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.run_warnings.small_groups import small_groups_warning


@pytest.mark.parametrize(
    ("algorithm", "groups", "members", "told"),
    [
        (Algorithm(advantage=GRPO()), 60, 2, True),
        (Algorithm(advantage=GAE(), per_env={"lake": EnvAlgorithm(advantage=GRPO())}), 60, 2, True),
        (Algorithm(advantage=GRPO()), 40, 3, False),
        (Algorithm(advantage=GAE()), 60, 2, False),
        (Algorithm(advantage=GRPO()), 2, 2, False),  # too few trajectories for larger groups
    ],
)
def test_groups_of_two_are_told_of_with_as_many_trajectories(
    algorithm: Algorithm, groups: int, members: int, told: bool
) -> None:
    rollout = RolloutConfig(num_groups=groups, group_size=members)
    warning = small_groups_warning(algorithm.comparing_members, rollout)
    assert (warning is not None) == told
    if warning is not None:
        assert "GRPO compares the members" in warning
        assert "num_groups 15 --data.rollout.group_size 8" in warning
