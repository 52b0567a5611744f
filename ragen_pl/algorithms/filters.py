"""Filter rules: which groups ``callbacks.VarianceFilter`` keeps, and with which weights.

Each class has the arguments of one function of ``ragen_pl.ops.selection`` and is chosen in YAML:
``filter: {keep_fraction: null, rule: {class_path: ragen_pl.algorithms.filters.TopP}}``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ragen_pl.ops import selection
from ragen_pl.ops.selection import Order
from ragen_pl.runtime.user_classes import calling, contract_error, described


class FilterRule(ABC):
    """A rule that maps the groups' scores to weights."""

    compares_sizes: ClassVar[bool] = False
    """Whether the rule compares the size of scores, which must then not be negative."""

    @abstractmethod
    def __call__(self, scores: Tensor) -> Tensor:
        """Return the weights of the groups.

        Args:
            scores: (G,), NaN for groups that cannot be kept.

        Returns:
            (G,) bool mask, or float weights ≥ 0.
        """

    def weigh(self, scores: Tensor) -> Tensor:
        """Return the checked weights of the groups, (G,) float64.

        Args:
            scores: (G,), NaN for groups that cannot be kept.

        Raises:
            ConfigError: if the rule raises, or returns anything but a bool mask or finite weights
                ≥ 0, one per group and 0 where there is no score.
        """
        with calling(self, "__call__", "scores"):
            given: object = self(scores.clone())  # which it may change, and is compared with
        wanted = (
            f"a bool mask, or float weights of 0 or more, of shape {tuple(scores.shape)}: one per "
            "group"
        )
        if (
            not isinstance(given, Tensor)
            or given.shape != scores.shape
            or not (given.dtype == torch.bool or given.is_floating_point())
        ):
            raise contract_error(self, "__call__", described(given), wanted)
        weights = given.detach().to(scores.device, torch.float64)
        unscored = scores.isnan()
        for wrong, what in (
            (~weights.isfinite(), "finite weights; a score is NaN where a group cannot be kept"),
            (weights < 0, wanted),
            (unscored & (weights != 0), "0 or False where a score is NaN: such a group is out"),
        ):
            if bool(wrong.any()):
                at = int(torch.nonzero(wrong)[0])
                weight, score = float(weights[at]), float(scores[at])
                told = f"a weight of {weight:.3g} for a score of {score:.3g}"
                raise contract_error(self, "__call__", told, what)
        return weights

    def try_out(self) -> None:
        """Check the arguments before a run, by a call of the rule, which refuses wrong ones.

        Raises:
            ValueError: if it refuses its arguments; a ``ConfigError`` as ``weigh``.
        """
        self.weigh(torch.tensor([1.0, torch.nan], dtype=torch.float64))

    def __post_init__(self) -> None:
        self.try_out()


@dataclass(frozen=True)
class TopFraction(FilterRule):
    """The best fraction of all groups; ``filter.keep_fraction`` is short for this.

    Args:
        fraction: Fraction of groups to keep, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    fraction: float = 0.25
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_fraction(scores, self.fraction, self.order)


@dataclass(frozen=True)
class TopK(FilterRule):
    """A fixed number of groups.

    Args:
        k: Number of groups to keep.
        order: Whether the largest or the smallest scores are best.
    """

    k: int = 4
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_k(scores, self.k, self.order)


@dataclass(frozen=True)
class TopP(FilterRule):
    """The best groups that together have a fraction of the total score (RAGEN-2).

    Args:
        p: Fraction of the total score, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    compares_sizes: ClassVar[bool] = True
    p: float = 0.9
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_p(scores, self.p, self.order)


@dataclass(frozen=True)
class SoftmaxTopP(FilterRule):
    """The best groups that together have a fraction of the softmax over scores.

    Args:
        p: Fraction of the softmax's mass, in (0, 1].
        temperature: Softmax temperature, in units of the batch's largest absolute score.
        order: Whether the largest or the smallest scores are best.
    """

    p: float = 0.9
    temperature: float = 0.2
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.top_p_softmax(scores, self.p, self.temperature, self.order)


@dataclass(frozen=True)
class MinP(FilterRule):
    """The groups whose score is within a factor of the best score.

    Args:
        p: Factor of the best score, in (0, 1].
        order: Whether the largest or the smallest scores are best.
    """

    compares_sizes: ClassVar[bool] = True
    p: float = 0.2
    order: Order = "largest"

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.min_p(scores, self.p, self.order)


@dataclass(frozen=True)
class PercentileBand(FilterRule):
    """The groups between two percentiles of the ranking, as for studies by quartile.

    Args:
        low: Fraction of the scored groups below the band.
        high: Fraction of the scored groups below the upper end of the band.
    """

    low: float = 0.25
    high: float = 0.75

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.percentile_band(scores, self.low, self.high)


@dataclass(frozen=True)
class SoftWeights(FilterRule):
    """Weights proportional to the score, with mean one; no group with a positive score is dropped.

    Args:
        power: Weights are proportional to the score to this power.
    """

    compares_sizes: ClassVar[bool] = True
    power: float = 1.0

    def __call__(self, scores: Tensor) -> Tensor:
        return selection.soft_weights(scores, self.power)
