"""The base class of advantage estimators, and the configuration of the critic of some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ragen_pl.algorithms.checked_tensors import check_per_token
from ragen_pl.distributed.collectives import all_or_none
from ragen_pl.ops import advantages
from ragen_pl.runtime.user_classes import calling, contract_error, described
from ragen_pl.types import RolloutBatch


@dataclass(frozen=True)
class CriticConfig:
    """The critic and its training.

    Args:
        lr: Critic learning rate.
        value_coef: Weight of the value loss.
        value_clip: Largest change of a value from the old one before its loss is clipped; null for
            no clipping.
        warmup_iterations: Number of first RL iterations in which only the critic is trained.
        train_on: Trajectories the critic is trained on. all: every one; kept: those the policy is
            trained on, as in RAGEN, which discards the others before the update; this saves the
            more time, the stricter the filter.
        backbone: separate: the critic is a network of its own, as in the paper; shared: a value
            head on the policy's hidden states, at almost no cost. ``lr`` is then that of the head
            only, and ``value_coef`` is the weight of the value loss in the policy's backbone.
    """

    lr: float = 1e-3
    value_coef: float = 1.0
    value_clip: float | None = 0.5
    warmup_iterations: int = 5
    train_on: Literal["all", "kept"] = "all"
    backbone: Literal["separate", "shared"] = "separate"

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"critic.lr is {self.lr}; it must be positive")
        for key in ("value_coef", "warmup_iterations"):
            if getattr(self, key) < 0:
                raise ValueError(f"critic.{key} is {getattr(self, key)}; it must not be negative")
        if self.value_clip is not None and self.value_clip <= 0:
            raise ValueError(
                f"critic.value_clip is {self.value_clip}; it must be positive, or null for none"
            )

    def rows(self, rollout: RolloutBatch) -> Tensor:
        """Return the mask of the trajectories that the critic is trained on, (B,) bool."""
        kept = rollout.kept
        return kept if self.train_on == "kept" else torch.ones_like(kept)

    def tokens(self, rollout: RolloutBatch) -> Tensor:
        """Return the mask of the sampled tokens of those trajectories, (B, T) bool."""
        return rollout.loss_mask & self.rows(rollout)[:, None]


class AdvantageEstimator(ABC):
    """An estimator of the advantage of every sampled token."""

    critic: CriticConfig | None = None
    """The critic's configuration; None for estimators without a critic."""
    compares_members: bool = False
    """Whether trajectories are compared with the other members of their group."""

    def credit(self, rollout: RolloutBatch) -> Tensor:
        """Return the environment's rewards, (B, T), at the tokens that they are assigned to."""
        return rollout.rewards

    @abstractmethod
    def __call__(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns (the critic's targets), each (B, T).

        Args:
            rollout: This rank's rollout, of whole groups.
            rewards: (B, T): what ``credit`` returned, minus a KL penalty per token if configured.
            values: (B, T); zeros without a critic.
        """


def estimate(
    estimator: AdvantageEstimator,
    rollout: RolloutBatch,
    values: Tensor,
    kl_penalty: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return an estimator's checked advantages and returns, each (B, T); every rank must call it.

    What is wrong on one rank ends all of them, but for an estimator that raises on one rank while
    others wait for it in a collective of its own.

    Args:
        estimator: The estimator.
        rollout: This rank's rollout, of whole groups.
        values: (B, T); zeros without a critic.
        kl_penalty: (B, T), subtracted from the rewards where the estimator put them; None for none.

    Raises:
        ConfigError: if the estimator raises; on all ranks if what it returned on one is no pair of
            finite float tensors (B, T) that are zero at tokens that were not sampled.
    """
    mask = rollout.loss_mask
    rewards = all_or_none(lambda: _credit(estimator, rollout))
    given_rewards = (rollout.rewards,)
    check_per_token(estimator, "credit", {"rewards": rewards}, given_rewards, mask, is_masked=False)
    if kl_penalty is not None:
        rewards = rewards - kl_penalty
    has_compare = isinstance(estimator, WithoutCritic)
    method = "compare" if has_compare else "__call__"
    signature = "rollout, rewards" if has_compare else "rollout, rewards, values"

    def call() -> tuple[Tensor, Tensor]:
        with calling(estimator, method, signature):
            given: object = estimator(rollout, rewards, values)
        if not isinstance(given, tuple) or len(given) != 2:
            pair = "two tensors: advantages and returns"
            raise contract_error(estimator, method, described(given), pair)
        return given

    estimated, returns = all_or_none(call)
    results = {"advantages": estimated, "returns": returns}
    check_per_token(estimator, method, results, (rewards, values), mask)
    return estimated, returns


def _credit(estimator: AdvantageEstimator, rollout: RolloutBatch) -> Tensor:
    with calling(estimator, "credit", "rollout"):
        return estimator.credit(rollout)


class WithoutCritic(AdvantageEstimator):
    """An estimator that uses rewards only."""

    def __call__(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        compared = self.compare(rollout, rewards)
        return compared, advantages.reward_to_go(rewards, rollout.loss_mask)

    @abstractmethod
    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        """Return advantages, (B, T)."""


def check_ranges(
    estimator: AdvantageEstimator,
    *,
    unit_interval: tuple[str, ...] = (),
    positive: tuple[str, ...] = (),
) -> None:
    """Check the ranges of keys.

    Args:
        estimator: The estimator.
        unit_interval: Keys that must be in [0, 1].
        positive: Keys that must be above 0.

    Raises:
        ValueError: naming key and value.
    """
    for key in unit_interval:
        if not 0 <= getattr(estimator, key) <= 1:
            raise ValueError(f"advantage.{key} is {getattr(estimator, key)}; it must be in [0, 1]")
    for key in positive:
        if getattr(estimator, key) <= 0:
            raise ValueError(f"advantage.{key} is {getattr(estimator, key)}; it must be positive")
