"""Say what an estimator of advantages is, and configure the critic that some of them use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ragen_pl.ops import advantages
from ragen_pl.types import RolloutBatch


@dataclass(frozen=True)
class CriticConfig:
    """Configure how the critic learns.

    Args:
        lr: Critic learning rate.
        value_coef: Weight of the value loss.
        value_clip: How far a value may move from the old one before its loss is clipped; null off.
        warmup_iterations: First RL iterations in which only the critic learns.
        train_on: all: from every trajectory; kept: from those the policy learns from, as in
            RAGEN, which throws the others away before anything is learned. Cheaper, the stricter
            the filter.
        backbone: separate: the critic is a network of its own, as in the paper; shared: a value
            head on the policy's hidden states, which costs next to nothing. ``lr`` is then the
            head's alone, and ``value_coef`` weighs what the policy's backbone learns of values.
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
        """Mark the trajectories the critic learns from; (B,) bool."""
        kept = rollout.policy_weights > 0
        return kept if self.train_on == "kept" else torch.ones_like(kept)

    def tokens(self, rollout: RolloutBatch) -> Tensor:
        """Mark the sampled tokens of those trajectories; (B, T) bool."""
        return rollout.loss_mask & self.rows(rollout)[:, None]


class AdvantageEstimator(ABC):
    """Tell for every sampled token how much better it was than expected."""

    critic: CriticConfig | None = None
    """How the critic learns; None where there is none."""
    compares_members: bool = False
    """Whether trajectories are compared with the others of their group."""

    def credit(self, rollout: RolloutBatch) -> Tensor:
        """Return the environment's rewards, (B, T), at the tokens that are credited with them."""
        return rollout.rewards

    @abstractmethod
    def __call__(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns (the critic's targets), each (B, T).

        Args:
            rollout: This rank's whole collection; groups lie whole in it.
            rewards: (B, T): what ``credit`` gave, less a KL penalty per token where one is asked
                for.
            values: (B, T); zeros without a critic.
        """


class WithoutCritic(AdvantageEstimator):
    """Estimate from rewards alone."""

    def __call__(
        self, rollout: RolloutBatch, rewards: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        estimate = self.compare(rollout, rewards)
        return estimate, advantages.reward_to_go(rewards, rollout.loss_mask)

    @abstractmethod
    def compare(self, rollout: RolloutBatch, rewards: Tensor) -> Tensor:
        """Return advantages, (B, T)."""


def kept_tokens(rollout: RolloutBatch) -> Tensor:
    """Mark the sampled tokens that the policy learns from; (B, T) bool."""
    return rollout.loss_mask & (rollout.policy_weights > 0)[:, None]


def check(
    config: AdvantageEstimator, *, shares: tuple[str, ...] = (), positive: tuple[str, ...] = ()
) -> None:
    """Refuse values out of range.

    Args:
        shares: Keys that lie in [0, 1].
        positive: Keys that are above 0.

    Raises:
        ValueError: naming key and value.
    """
    for key in shares:
        if not 0 <= getattr(config, key) <= 1:
            raise ValueError(f"advantage.{key} is {getattr(config, key)}; it lies in [0, 1]")
    for key in positive:
        if getattr(config, key) <= 0:
            raise ValueError(f"advantage.{key} is {getattr(config, key)}; it must be positive")
