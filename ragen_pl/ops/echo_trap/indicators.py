"""Hold what is measured of each iteration against the run's own past."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

FEWEST = 6
"""Iterations before which nothing is held against the past: three are the least baseline."""
_FEWEST_STEPS = 2
"""Of which the length of steps is told: the first one, after the critic's head start, is longer."""
_LEAST_NOISE = 0.02
"""Of success per iteration, for policies so good or bad that it hardly varies."""


@dataclass(frozen=True, slots=True)
class Indicators:
    """Hold one iteration's measurements, over all ranks and unfiltered."""

    in_group_std: float
    """Mean over groups of the returns' standard deviation."""
    zero_std_fraction: float
    """Share of groups whose members all got the same return."""
    entropy: float
    """Mean per sampled token, in nats."""
    valid_format: float
    """Share of turns."""
    penalty_share: float
    """Share of trajectories that failed without one valid turn: their return is at the floor."""
    success: float
    mean_return: float
    grad_norm: float | None = None
    """Of the policy in the update before; None where there was none."""
    response_length: float | None = None
    """Mean tokens per response; None in histories from before it was measured."""
    approx_kl: float | None = None
    """Nats per token between the policy that played and the one being updated, averaged over the
    updates before; None where there were none, or one, which starts from what played."""


class Smoothed:
    """Smooth one indicator and hold it against its past."""

    def __init__(self, values: Sequence[float], baseline_iterations: int, smoothing: float) -> None:
        self.values = list(values)
        # While it is not complete: half of what there is, so that a fall does not set the standard.
        first = self.values[: min(baseline_iterations, max(3, len(self.values) // 2))]
        self.baseline = fmean(first) if first else math.nan
        smoothed, total, weight = [], 0.0, 0.0
        for value in self.values:
            # Dividing by the weights so far undoes the pull towards a start at zero.
            total, weight = smoothing * total + value, smoothing * weight + 1.0
            smoothed.append(total / weight)
        self.now = smoothed[-1] if smoothed else math.nan
        self.best = max(smoothed[1:], default=math.nan)
        """Of the smoothed values; the first is a single look and may be luck."""
        self.lowest = min(smoothed[1:], default=math.nan)

    @property
    def ratio(self) -> float:
        """Now against the baseline; 1 where there is no baseline to speak of."""
        return self.now / self.baseline if self.baseline > 1e-6 else 1.0

    @property
    def share_of_best(self) -> float:
        return self.now / self.best if self.best > 1e-6 else 1.0

    @property
    def noise(self) -> float:
        """Estimate one look's standard error from neighbors: a trend or a jump hardly counts."""
        steps = [abs(b - a) for a, b in pairwise(self.values)]
        return 1.4826 / math.sqrt(2) * median(steps) if steps else 0.0


class RunHistory:
    """Hold every indicator's series."""

    def __init__(
        self, history: Sequence[Indicators], baseline_iterations: int, smoothing: float
    ) -> None:
        def series(values: Iterable[float | None]) -> Smoothed:
            return Smoothed([v for v in values if v is not None], baseline_iterations, smoothing)

        self.length, self.baseline_iterations = len(history), baseline_iterations
        self.spread = series(i.in_group_std for i in history)
        self.zero = series(i.zero_std_fraction for i in history)
        self.entropy = series(i.entropy for i in history)
        self.format = series(i.valid_format for i in history)
        self.floor = series(i.penalty_share for i in history)
        self.length_of_responses = series(i.response_length for i in history)
        self.success = series(i.success for i in history)
        self.returns = series(i.mean_return for i in history)
        # Logarithms, so that a single outlier does not drag the average along.
        self.log_grad = series(math.log(i.grad_norm) for i in history if i.grad_norm)
        self.log_step = series(math.log(i.approx_kl) for i in history if i.approx_kl)
        self.look = max(_LEAST_NOISE, self.success.noise)
        self.error = self.look * math.sqrt((1 - smoothing) / (1 + smoothing))
        """Standard error of the smoothed success."""

    @property
    def grad_ratio(self) -> float:
        difference = self.log_grad.now - self.log_grad.baseline
        return 1.0 if math.isnan(difference) else math.exp(difference)

    @property
    def step(self) -> float:
        """How far updates move the policy, a geometric mean in nats per token; NaN where it is not
        known."""
        known = len(self.log_step.values) >= _FEWEST_STEPS
        return math.exp(self.log_step.now) if known else math.nan

    @property
    def improved(self) -> bool:
        """Whether success or return is above its baseline by more than chance explains."""
        of_mean = math.hypot(self.error, self.look / math.sqrt(self.baseline_iterations))
        if self.success.now > self.success.baseline + 2 * of_mean:
            return True
        gain = self.returns.now - self.returns.baseline
        return gain > max(2 * self.returns.noise, 0.25 * self.spread.baseline)

    def steps(self) -> dict[str, float]:
        return {} if math.isnan(self.step) else {"policy_step": self.step}

    def ratios(self) -> dict[str, float]:
        return self.steps() | {
            "in_group_std_ratio": self.spread.ratio,
            "entropy_ratio": self.entropy.ratio,
            "grad_norm_ratio": self.grad_ratio,
            "response_length_ratio": self.length_of_responses.ratio,
            "valid_format_ratio": self.format.share_of_best,
            "success_ratio": self.success.share_of_best,
            "zero_std_fraction": self.zero.now,
            "penalty_share": self.floor.now,
        }
