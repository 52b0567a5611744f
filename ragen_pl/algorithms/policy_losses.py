"""Policy losses: one class each, whose constructor's arguments are its config keys."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ragen_pl.distributed.collectives import all_reduce_sum, gather_objects
from ragen_pl.ops.losses import (
    anchored_policy_loss,
    clipped_policy_loss,
    clipped_weight_loss,
    sequence_log_ratio,
    sequence_policy_loss,
    soft_gate_loss,
)
from ragen_pl.ops.masked import outside_clip
from ragen_pl.ops.token_choice import choose_largest, covariances, share_of, token_keys
from ragen_pl.types import TrainingBatch


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
    corrects_later_updates: ClassVar[bool] = True
    """Whether it is right for further updates of a rollout, whose policy has changed since."""

    def choose(self, batch: TrainingBatch) -> Tensor | None:
        """Return the tokens that the loss treats apart, (B, T) bool; None if it has no such tokens.

        It is called once per optimizer batch, before its first micro-batch and on every rank, so
        that the choice can be made among the tokens of all ranks.

        Args:
            batch: This rank's rows of the optimizer batch; in a mixture those whose environment has
                this loss, which may be none.
        """
        return None

    def loss_of_chosen(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
    ) -> Tensor:
        """Return the loss per token, (B, T), that holds for chosen tokens in place of ``loss``."""
        raise NotImplementedError(f"{type(self).__name__} chooses tokens without a loss for them")

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
class SAPO(PolicyLoss):
    """SAPO: a smooth gate on each token's ratio in place of clipping (2511.20347).

    Nothing is cut off: a token's gradient fades as its ratio leaves 1, and
    ``train/clip_fraction`` is 0.

    Args:
        temperature_pos: How fast the gradient fades for tokens with a positive advantage; towards 0
            it never does.
        temperature_neg: The same for tokens with a negative advantage, which spread probability
            over all other tokens; larger in the paper, so that they fade sooner.
    """

    temperature_pos: float = 1.0
    temperature_neg: float = 1.05

    def __post_init__(self) -> None:
        for key in ("temperature_pos", "temperature_neg"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(
                    f"policy_loss.{key} is {getattr(self, key)}; it must be positive (1 is usual)"
                )

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        loss = soft_gate_loss(
            log_probs,
            old_log_probs,
            advantages,
            temperature_pos=self.temperature_pos,
            temperature_neg=self.temperature_neg,
        )
        return TokenLoss(loss, torch.zeros_like(mask))


@dataclass(frozen=True)
class _CovarianceLoss(PolicyLoss):
    """A loss that treats a share of the tokens apart by their covariance (2505.22617).

    The covariance of a token is the product of its log-prob and its advantage, both relative to
    their means over the kept tokens of the optimizer batch of all ranks, and of all environments of
    a mixture that have no loss of their own. The log-probs are those of the policy that collected,
    so the choice needs no pass of its own; in later updates of a collection the paper takes the
    current ones. At least one token is chosen, unless the share is 0.

    Args:
        share: Share of the tokens of the optimizer batch that are chosen.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"policy_loss.share is {self.share}; it must be in [0, 1]")

    def choose(self, batch: TrainingBatch) -> Tensor:
        device = batch.advantages.device
        batch = batch.to(torch.device("cpu"))  # Apple's GPU has no float64
        rollout, mask = batch.rollout, batch.rollout.kept_tokens
        products = covariances(batch.old_log_probs, batch.advantages, mask, all_reduce_sum)
        scores, candidates = self._ranked(products, mask)
        keys = token_keys(
            rollout.trajectory_ids,
            rollout.sequence_index,
            rollout.input_ids,
            rollout.attention_mask,
        )
        count = share_of(int(all_reduce_sum(mask.sum())), self.share)
        return choose_largest(scores, keys, candidates, count, gather_objects).to(device)

    @abstractmethod
    def _ranked(self, products: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores, of which the largest are chosen, and the candidates, each (B, T)."""


@dataclass(frozen=True)
class ClipCov(_CovarianceLoss):
    """Clip-Cov: the clipped surrogate without the gradient of some tokens of high covariance.

    The tokens are drawn uniformly among those whose covariance lies within the bounds, by a hash
    that a resumed run repeats (2505.22617, ``ops.token_choice``). With a share of 0 it is PPO's
    surrogate without dual clip. The authors' scripts have clipping bounds of 1, and leave tokens
    outside of them out of the draw, which is made here before an update knows them.

    Args:
        share: Share of the optimizer batch's tokens without a gradient; at least one token, if any
            lies within the bounds.
        cov_low: Lower bound of the covariance, in nats times the unit of advantages.
        cov_high: Upper bound of the covariance.
        clip_low: The ratio's lower bound is 1 - clip_low.
        clip_high: The ratio's upper bound is 1 + clip_high.
    """

    share: float = 2e-4
    cov_low: float = 1.0
    cov_high: float = 5.0
    clip_low: float = 0.2
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bounds(self.clip_low, self.clip_high)
        if not self.cov_low < self.cov_high:
            raise ValueError(
                f"policy_loss.cov_low is {self.cov_low} and cov_high is {self.cov_high}; cov_low "
                "must be below cov_high"
            )

    def _ranked(self, products: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        within = (products >= self.cov_low) & (products <= self.cov_high)
        return torch.zeros_like(products), mask & within

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        clip = Clip(self.clip_low, self.clip_high, dual_clip=None)
        return clip(log_probs, old_log_probs, advantages, mask)

    def loss_of_chosen(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
    ) -> Tensor:
        return torch.zeros_like(advantages)


@dataclass(frozen=True)
class KLCov(_CovarianceLoss):
    """KL-Cov: the unclipped surrogate, with a pull to the old policy for the tokens of the highest
    covariance (2505.22617).

    Nothing is clipped. The pull acts from a collection's second update on, where the policy has
    left the one that collected: with ``online_k`` and ``ppo_epochs`` 1 it never does.

    Args:
        share: Share of the optimizer batch's tokens that are pulled; at least one.
        coef: Weight of the pull, |log ρ| per token; 0 is the unclipped surrogate.
    """

    share: float = 2e-3
    coef: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coef < 0:
            raise ValueError(f"policy_loss.coef is {self.coef}; it must not be negative")

    def _ranked(self, products: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return products, mask

    def __call__(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor
    ) -> TokenLoss:
        loss = anchored_policy_loss(log_probs, old_log_probs, advantages, coef=0.0)
        return TokenLoss(loss, torch.zeros_like(mask))

    def loss_of_chosen(
        self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor
    ) -> Tensor:
        return anchored_policy_loss(log_probs, old_log_probs, advantages, coef=self.coef)


@dataclass(frozen=True)
class LogLikelihood(PolicyLoss):
    """REINFORCE: -A log π per token, without an importance ratio.

    It is correct for the first update of a rollout only: later ones (``online_k`` or ``ppo_epochs``
    above 1) are not corrected for being off-policy. With ``estimators.Success`` it imitates the
    successful trajectories (STaR), which may be repeated.
    """

    corrects_later_updates: ClassVar[bool] = False

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
