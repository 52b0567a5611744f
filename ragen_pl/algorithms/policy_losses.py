"""Policy losses: one class each, whose constructor's arguments are its config keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ragen_pl.ops.losses import (
    clipped_policy_loss,
    clipped_weight_loss,
    sequence_log_ratio,
    sequence_policy_loss,
)
from ragen_pl.ops.masked import outside_clip


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """A loss per token, (B, T), before weighting and aggregation."""

    loss: Tensor
    clipped: Tensor
    """(B, T) bool: whether the ratio is outside the clipping bounds."""


class PolicyLoss(ABC):
    """A loss per sampled token."""

    needs_whole_trajectories: ClassVar[bool] = False
    """Whether the loss of a token depends on all tokens of its trajectory."""

    @abstractmethod
    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        """Return the loss per token.

        Args:
            log_probs: (B, T), of the current policy.
            old_log_probs: (B, T), of the policy that sampled.
            advantages: (B, T).
            mask: (B, T) bool, sampled tokens.
        """


@dataclass(frozen=True)
class Clip(PolicyLoss):
    """PPO's clipped surrogate per token, with separate bounds for either side.

    Args:
        clip_low: The ratio's lower bound is 1 - clip_low.
        clip_high: The ratio's upper bound is 1 + clip_high (0.28: "clip-higher").
        dual_clip: Upper bound of the ratio for tokens with a negative advantage (dual-clip PPO);
            null for no bound.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0

    def __post_init__(self) -> None:
        check_bounds(self.clip_low, self.clip_high)
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise ValueError(
                f"policy_loss.dual_clip is {self.dual_clip}; it must be above 1 (3.0 is usual), "
                "or null for none"
            )

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        loss = clipped_policy_loss(
            log_probs, old_log_probs, advantages, dual_clip=self.dual_clip, **bounds
        )
        return TokenLoss(loss, outside_clip((log_probs - old_log_probs).detach(), **bounds))


@dataclass(frozen=True)
class GSPO(PolicyLoss):
    """GSPO: clipping by the ratio of the trajectory, normalized by its length (2507.18071).

    This ratio is much closer to 1 than that of a token, and so are the bounds. It needs all tokens
    of a trajectory in one training sequence: a memory that cuts the context is refused.

    Args:
        clip_low: The trajectory ratio's lower bound is 1 - clip_low.
        clip_high: The trajectory ratio's upper bound is 1 + clip_high.
    """

    needs_whole_trajectories: ClassVar[bool] = True

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        check_bounds(self.clip_low, self.clip_high)

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        loss = sequence_policy_loss(log_probs, old_log_probs, advantages, mask, **bounds)
        log_ratio = sequence_log_ratio(log_probs.detach(), old_log_probs, mask)
        return TokenLoss(loss, outside_clip(log_ratio, **bounds).expand_as(mask))


@dataclass(frozen=True)
class CISPO(PolicyLoss):
    """CISPO: a clipped importance weight per token that leaves its gradient unclipped (2506.13585).

    Args:
        clip_low: The weight's lower bound is 1 - clip_low; 1 is no bound, as in the paper.
        clip_high: The weight's upper bound is 1 + clip_high.
    """

    clip_low: float = 1.0
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        check_bounds(self.clip_low, self.clip_high)

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        loss = clipped_weight_loss(log_probs, old_log_probs, advantages, **bounds)
        return TokenLoss(loss, outside_clip((log_probs - old_log_probs).detach(), **bounds))


@dataclass(frozen=True)
class LogLikelihood(PolicyLoss):
    """REINFORCE: -A log π per token, without an importance ratio.

    It is correct for the first update of a rollout only: later ones (``online_k`` or ``ppo_epochs``
    above 1) are not corrected for being off-policy. With ``estimators.Success`` it imitates the
    successful trajectories (STaR).
    """

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        return TokenLoss(-advantages * log_probs, torch.zeros_like(mask))


def check_bounds(clip_low: float, clip_high: float) -> None:
    """Check clipping bounds.

    Raises:
        ValueError: unless 0 ≤ clip_low ≤ 1 and clip_high ≥ 0.
    """
    if not 0 <= clip_low <= 1:
        raise ValueError(f"policy_loss.clip_low is {clip_low}; it must be in [0, 1]")
    if clip_high < 0:
        raise ValueError(f"policy_loss.clip_high is {clip_high}; it must not be negative")
