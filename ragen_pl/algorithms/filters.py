"""Offer the rules of ``callbacks.VarianceFilter`` as classes to choose in YAML.

``filter: {keep_fraction: null, rule: {class_path: ragen_pl.algorithms.filters.TopP}}``; each holds
the keys of one function of ``ragen_pl.ops.selection``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ragen_pl.ops import selection
from ragen_pl.ops.selection import Order


class FilterRule(ABC):
    """Turn the groups' scores into weights."""

    compares_sizes: ClassVar[bool] = False
    """Whether scores must not be negative."""

    @abstractmethod
    def __call__(self, scores: Tensor) -> Tensor:
        """Weigh groups.

        Args:
            scores: (G,), NaN where a group is out of the question.

        Returns:
            (G,) bool mask, or float weights ≥ 0.
        """

    def __post_init__(self) -> None:
        """Refuse bad keys before a run: the functions judge them."""
        self(torch.ones(1, dtype=torch.float64))


@dataclass(frozen=True)
class TopFraction(FilterRule):
    """Keep the best share of all groups; ``keep_fraction`` is short for this.

    Args:
        fraction: Share of groups to keep, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    fraction: float = 0.25
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_fraction(scores, self.fraction, self.order)


@dataclass(frozen=True)
class TopK(FilterRule):
    """Keep a fixed number of groups.

    Args:
        k: How many.
        order: Whether the largest or the smallest scores are best.
    """

    k: int = 4
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_k(scores, self.k, self.order)


@dataclass(frozen=True)
class TopP(FilterRule):
    """Keep the best groups until they hold a share of the total score (RAGEN-2).

    Args:
        p: That share, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    compares_sizes: ClassVar[bool] = True
    p: float = 0.9
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_p(scores, self.p, self.order)


@dataclass(frozen=True)
class SoftmaxTopP(FilterRule):
    """Keep the best groups until they hold a share of the scores' softmax.

    Args:
        p: That share, in (0, 1].
        temperature: Of the softmax, in units of the batch's largest absolute score.
        order: Whether the largest or the smallest scores are best.
    """

    p: float = 0.9
    temperature: float = 0.2
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_p_softmax(scores, self.p, self.temperature, self.order)


@dataclass(frozen=True)
class MinP(FilterRule):
    """Keep the groups whose score is within a factor of the best one's.

    Args:
        p: That factor, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    compares_sizes: ClassVar[bool] = True
    p: float = 0.2
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.min_p(scores, self.p, self.order)


@dataclass(frozen=True)
class PercentileBand(FilterRule):
    """Keep the groups between two places of the ranking, as for studies by quartile.

    Args:
        low: Share of the scored groups that lie below the band.
        high: Share of the scored groups below its upper end.
    """

    low: float = 0.25
    high: float = 0.75

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.percentile_band(scores, self.low, self.high)


@dataclass(frozen=True)
class SoftWeights(FilterRule):
    """Weigh groups by their score and drop none that has any; the mean weight is one.

    Args:
        power: Weights are proportional to the score to this power.
    """

    compares_sizes: ClassVar[bool] = True
    power: float = 1.0

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.soft_weights(scores, self.power)
