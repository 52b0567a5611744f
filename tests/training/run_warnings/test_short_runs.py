"""Runs whose limits cut off what they are configured for are told."""

from __future__ import annotations

import pytest

from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.training.run_warnings.short_runs import critic_alone, cut_warm_start

WARM = WarmStart(iterations=2, updates_per_iteration=30)
ROLLOUT = RolloutConfig(online_k=2, ppo_epochs=2)


@pytest.mark.parametrize(
    ("epochs", "steps", "told"),
    [
        (1, -1, "trainer.max_epochs is 1"),
        (-1, 59, "trainer.max_steps is 59"),
        (None, 59, "trainer.max_steps is 59"),
        (2, -1, None),
        (-1, 60, None),
        (-1, -1, None),
    ],
)
def test_a_run_that_ends_within_its_warm_start(
    epochs: int | None, steps: int, told: str | None
) -> None:
    warning = cut_warm_start(WARM, epochs, steps)
    if told is None:
        assert warning is None
    else:
        assert warning is not None
        assert warning.startswith(f"data.warm_start has 2 iterations of 30 updates, but {told}: ")
        assert "the run ends within the warm start" in warning


@pytest.mark.parametrize(
    ("epochs", "steps", "told"),
    [
        (3, -1, ("max_epochs is 3", "max_epochs above 5")),
        (5, -1, ("max_epochs is 5", "max_epochs above 5")),
        (-1, 72, ("max_steps is 72", "max_steps above 72")),  # 60 and 3 iterations of 4
        (None, 61, ("max_steps is 61", "max_steps above 72")),
        (-1, 73, None),
        (-1, 60, None),  # a supervised baseline has no RL
        (-1, -1, None),
        (2, -1, None),
        (6, -1, None),
    ],
)
def test_a_run_whose_rl_trains_the_critic_alone(
    epochs: int | None, steps: int, told: tuple[str, str] | None
) -> None:
    """Two iterations of the warm start, and three of the critic: the policy's first update is in
    the sixth."""
    warning = critic_alone(WARM, 3, ROLLOUT, epochs, steps)
    if told is None:
        assert warning is None
    else:
        assert warning is not None
        assert warning.startswith(
            f"trainer.{told[0]}, but RL updates the policy only after 5 iterations: 2 of the warm "
            "start and 3 of the critic alone."
        )
        assert f"raise trainer.{told[1]}, or lower" in warning


def test_a_filtered_rollout_may_take_one_step_per_pass() -> None:
    scaled = RolloutConfig(online_k=2, ppo_epochs=2, scale_updates=True)
    assert critic_alone(WARM, 3, scaled, -1, 66) is not None
    assert critic_alone(WARM, 3, scaled, -1, 67) is None


def test_without_a_critic_nothing_is_told() -> None:
    assert critic_alone(WARM, 0, ROLLOUT, 3, 61) is None
