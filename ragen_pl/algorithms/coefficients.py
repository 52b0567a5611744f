"""The coefficients of the KL term and the entropy bonus, which a run may adapt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm, Control
from ragen_pl.distributed.collectives import all_reduce_sum
from ragen_pl.ops.losses import kl_estimate
from ragen_pl.ops.masked import masked_mean


@dataclass(frozen=True, slots=True)
class FixedCoefficients:
    """Weights of the KL term and the entropy bonus in one evaluation of the loss."""

    kl: float
    entropy: float


class Coefficients:
    """Weights of the KL term and of the entropy bonus, fixed or controlled towards a target.

    They are controlled by measurements over all ranks and therefore equal on all. They are part of
    a checkpoint.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.kl = 0.0 if algorithm.kl is None else algorithm.kl.coef
        self.entropy = algorithm.entropy.coef
        self._rollout_kl = 0.0
        self._penalty_coef = self.kl
        """The weight of the KL in the rewards of the latest rollout."""

    def reward_penalty(self, log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Return the KL penalty per token, (B, T), to be subtracted from the rewards; update the KL
        coefficient for the next rollout. Every rank must call it."""
        config = self.algorithm.kl
        assert config is not None
        kl = kl_estimate(log_probs, ref_log_probs, config.estimator)
        self._penalty_coef, penalty = self.kl, self.kl * kl
        self._rollout_kl = float(masked_mean(kl, mask, all_reduce_sum))
        self.kl = _controlled(self.kl, self._rollout_kl, config.control, raises=False)
        return penalty

    def observe(self, entropy: Tensor, kl: Tensor) -> None:
        """Update the coefficients from an optimizer batch with kept trajectories.

        Args:
            entropy: Mean per token over all ranks; 0 is a deterministic policy.
            kl: Mean per token over all ranks; used only if the loss has a KL term.
        """
        bonus, penalty = self.algorithm.entropy, self.algorithm.kl
        self.entropy = _controlled(self.entropy, float(entropy), bonus.control, raises=True)
        if penalty is not None and self.algorithm.kl_in_loss:
            self.kl = _controlled(self.kl, float(kl), penalty.control, raises=False)

    def metrics(self) -> dict[str, Tensor]:
        """Return the current coefficients, and the KL of the rollout if rewards include it.

        Call it before ``observe``, which sets the coefficients of the next update.
        """
        metrics = {"train/entropy_coef": self.entropy}
        if self.algorithm.kl_in_loss:
            metrics["train/kl_coef"] = self.kl
        if self.algorithm.kl_in_reward:
            metrics |= {"train/kl_coef": self._penalty_coef, "train/kl": self._rollout_kl}
        return {name: torch.tensor(value) for name, value in metrics.items()}

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore controlled coefficients; fixed ones come from the configuration."""
        if self.algorithm.kl is not None and self.algorithm.kl.control is not None:
            self.kl = float(state["kl"])
        if self.algorithm.entropy.control is not None:
            self.entropy = float(state["entropy"])


def _controlled(coef: float, measured: float, control: Control | None, *, raises: bool) -> float:
    if control is None or not math.isfinite(measured):
        return coef
    return steer(coef, measured, control.target, control.horizon, raises=raises)


_MAX_ERROR = 0.2


def steer(coef: float, measured: float, target: float, horizon: float, *, raises: bool) -> float:
    """Return the next coefficient: c · (1 ± e / horizon), e = clip(measured / target − 1, ±0.2).

    The proportional controller of Ziegler et al. 2019 (1909.08593, §2.2), with one step per update
    instead of one per number of episodes.

    Args:
        coef: Current coefficient, above 0, because a coefficient of 0 would never change.
        measured: The measured quantity, such as the mean KL.
        target: Target of the measured quantity, above 0.
        horizon: Number of updates after which the coefficient has changed by 20 % at the largest
            error.
        raises: Whether a larger coefficient raises the measured quantity (an entropy bonus) or
            lowers it (a KL penalty).
    """
    error = min(_MAX_ERROR, max(-_MAX_ERROR, measured / target - 1.0))
    return coef * (1.0 + (-error if raises else error) / horizon)
