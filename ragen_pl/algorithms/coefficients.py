"""Hold the coefficients that a run may change as it goes."""

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
    """Weigh the KL term and the entropy bonus, for one look at the loss."""

    kl: float
    entropy: float


class Coefficients:
    """Keep the weights of the KL term and of the entropy bonus, fixed or steered to a target.

    What steers them is measured over all ranks, so they are equal on all; they belong into the
    checkpoint.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.kl = 0.0 if algorithm.kl is None else algorithm.kl.coef
        self.entropy = algorithm.entropy.coef
        self._collected_kl = 0.0
        self._penalty_coef = self.kl
        """What weighed the KL in the latest collection's rewards."""

    def reward_penalty(self, log_probs: Tensor, ref_log_probs: Tensor, mask: Tensor) -> Tensor:
        """Return what a collection's KL takes off each token's reward, and learn from how large it
        is. (B, T); every rank must call it."""
        config = self.algorithm.kl
        assert config is not None
        kl = kl_estimate(log_probs, ref_log_probs, config.estimator)
        self._penalty_coef, penalty = self.kl, self.kl * kl
        self._collected_kl = float(masked_mean(kl, mask, all_reduce_sum))
        self.kl = _steered(self.kl, self._collected_kl, config.control, raises=False)
        return penalty

    def observe(self, entropy: Tensor, kl: Tensor) -> None:
        """Learn what an optimizer batch of which something was kept measured, over all ranks.

        Args:
            entropy: Mean per token; 0 is a policy that is sure of everything.
            kl: Mean per token; without meaning unless the loss has a KL term.
        """
        bonus, penalty = self.algorithm.entropy, self.algorithm.kl
        self.entropy = _steered(self.entropy, float(entropy), bonus.control, raises=True)
        if penalty is not None and self.algorithm.kl_in_loss:
            self.kl = _steered(self.kl, float(kl), penalty.control, raises=False)

    def metrics(self) -> dict[str, Tensor]:
        """Return the coefficients in use, and the KL of a collection where rewards bear it.

        To be asked before ``observe``, which may set those of the next update.
        """
        found = {"train/entropy_coef": self.entropy}
        if self.algorithm.kl_in_loss:
            found["train/kl_coef"] = self.kl
        if self.algorithm.kl_in_reward:
            found |= {"train/kl_coef": self._penalty_coef, "train/kl": self._collected_kl}
        return {name: torch.tensor(value) for name, value in found.items()}

    def state_dict(self) -> dict[str, float]:
        return {"kl": self.kl, "entropy": self.entropy}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what was steered; a fixed coefficient is the configuration's to say."""
        if self.algorithm.kl is not None and self.algorithm.kl.control is not None:
            self.kl = float(state["kl"])
        if self.algorithm.entropy.control is not None:
            self.entropy = float(state["entropy"])


def _steered(coef: float, measured: float, control: Control | None, *, raises: bool) -> float:
    if control is None or not math.isfinite(measured):
        return coef
    return steer(coef, measured, control.target, control.horizon, raises=raises)


_LARGEST_ERROR = 0.2


def steer(coef: float, measured: float, target: float, horizon: float, *, raises: bool) -> float:
    """Return the next coefficient: c · (1 ± e / horizon), e = clip(measured / target − 1, ±0.2).

    The proportional controller of Ziegler et al. 2019 (1909.08593, §2.2), which steps once per
    update here rather than by episodes.

    Args:
        coef: Above 0: a coefficient of 0 would stay there.
        measured: What the coefficient acts on.
        target: What that should be, above 0.
        horizon: Updates it takes at the largest error for a change of 20 %.
        raises: Whether a larger coefficient raises what is measured (an entropy bonus) rather than
            lowers it (a KL penalty).
    """
    error = min(_LARGEST_ERROR, max(-_LARGEST_ERROR, measured / target - 1.0))
    return coef * (1.0 + (-error if raises else error) / horizon)
