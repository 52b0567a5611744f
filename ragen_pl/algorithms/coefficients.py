"""The coefficients of the KL term and the entropy bonus, which a run may adapt, and the band of
entropies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ragen_pl.algorithms.config import Algorithm, Control, EntropySmoothing
from ragen_pl.distributed.collectives import all_reduce_sum
from ragen_pl.ops.losses import kl_estimate
from ragen_pl.ops.masked import masked_mean


@dataclass(frozen=True, slots=True)
class EntropyBand:
    """The band of entropies that an update's bonus favors, in nats per token."""

    low: float
    high: float
    weight: float
    """Weight of a token's distance from the band, relative to its entropy."""


@dataclass(frozen=True, slots=True)
class LossCoefficients:
    """What the loss reads in one update: the weights of the KL term and the entropy bonus, and the
    band of entropies; None without smoothing, and before there is a history."""

    kl: float
    entropy: float
    entropy_band: EntropyBand | None = None


class Coefficients:
    """The coefficients of a run's losses: fixed, or controlled towards a target; and the history of
    entropies, around which the band lies.

    They follow measurements over all ranks and are therefore equal on all. They are part of a
    checkpoint.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.kl = 0.0 if algorithm.kl is None else algorithm.kl.coef
        self.entropy = algorithm.entropy.coef
        self._history = EntropyHistory(algorithm.entropy.smoothing)
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
        """Update the coefficients and the history from an optimizer batch with kept trajectories.

        Args:
            entropy: Mean per token over all ranks; 0 is a deterministic policy.
            kl: Mean per token over all ranks; used only if the loss has a KL term.
        """
        bonus, penalty = self.algorithm.entropy, self.algorithm.kl
        self._history.add(float(entropy))
        self.entropy = _controlled(self.entropy, float(entropy), bonus.control, raises=True)
        if penalty is not None and self.algorithm.kl_in_loss:
            self.kl = _controlled(self.kl, float(kl), penalty.control, raises=False)

    @property
    def current(self) -> LossCoefficients:
        """The coefficients of the next update."""
        return LossCoefficients(self.kl, self.entropy, self._history.band)

    def metrics(self) -> dict[str, Tensor]:
        """Return the current coefficients and band, and the KL of the rollout if rewards include
        it.

        Call it before ``observe``, which sets the coefficients of the next update.
        """
        metrics, band = {"train/entropy_coef": self.entropy}, self._history.band
        if band is not None:
            metrics |= {
                "train/entropy_band_low": band.low,
                "train/entropy_band_high": band.high,
                "train/smoothing_weight": band.weight,
            }
        if self.algorithm.kl_in_loss:
            metrics["train/kl_coef"] = self.kl
        if self.algorithm.kl_in_reward:
            metrics |= {"train/kl_coef": self._penalty_coef, "train/kl": self._rollout_kl}
        return {name: torch.tensor(value) for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"kl": self.kl, "entropy": self.entropy, "history": self._history.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore controlled coefficients and the history of entropies; fixed coefficients come
        from the configuration."""
        if self.algorithm.kl is not None and self.algorithm.kl.control is not None:
            self.kl = float(state["kl"])
        if self.algorithm.entropy.control is not None:
            self.entropy = float(state["entropy"])
        self._history.load_state_dict(state.get("history", {}))  # none in older checkpoints


class EntropyHistory:
    """The mean entropies of the latest updates, and the band around their mean.

    Args:
        config: The smoothing; None keeps no history.
    """

    def __init__(self, config: EntropySmoothing | None) -> None:
        self.config = config
        self._latest: deque[float] = deque(maxlen=0 if config is None else config.window)
        self._updates = 0

    def add(self, entropy: float) -> None:
        """Record the mean entropy of an update; one that is not finite does not count."""
        if self.config is not None and math.isfinite(entropy):
            self._latest.append(entropy)
            self._updates += 1

    @property
    def band(self) -> EntropyBand | None:
        """The band for the next update; None before the first."""
        if self.config is None or not self._latest:
            return None
        mean = math.fsum(self._latest) / len(self._latest)
        weight = self.config.weight * -math.expm1(-self._updates / self.config.ramp)
        return EntropyBand(self.config.low * mean, self.config.high * mean, weight)

    def state_dict(self) -> dict[str, Any]:
        return {"latest": list(self._latest), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the history; a shorter window takes the latest of it."""
        if self.config is not None and state:
            self._latest = deque(map(float, state["latest"]), maxlen=self.config.window)
            self._updates = int(state["updates"])


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
