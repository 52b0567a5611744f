"""Indicators of a run's health, smoothed and compared with the run's own past."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ragen_pl.ops.echo_trap.eruption import Bursts, find_bursts
from ragen_pl.ops.echo_trap.thresholds import EARLY_SMOOTHING

MIN_ITERATIONS = 6
"""Number of iterations from which on indicators are compared with a baseline: the shortest
baseline, half of a history, has three."""
_MIN_KL_VALUES = 2
"""Number of values from which on the KL of updates counts as known: the first value is larger,
because the critic was trained alone before it."""
_MIN_SUCCESS_NOISE = 0.02
"""Lower bound of the noise of success per iteration, for policies so good or so bad that it hardly
varies."""


@dataclass(frozen=True, slots=True)
class Indicators:
    """One iteration's measurements, over all ranks and unfiltered."""

    in_group_std: float
    """Mean over groups of the returns' standard deviation."""
    zero_std_fraction: float
    """Share of groups whose members all got the same return."""
    entropy: float
    """Mean entropy per sampled token, in nats."""
    valid_format: float
    """Share of turns whose response has the valid format."""
    penalty_share: float
    """Share of trajectories that failed without one valid turn: their return is at the floor."""
    success: float
    mean_return: float
    grad_norm: float | None = None
    """Gradient norm of the policy in the preceding update; None if there was no update."""
    response_length: float | None = None
    """Mean number of tokens per response; None in histories of runs that did not measure it."""
    approx_kl: float | None = None
    """Nats per token between the policy that sampled and the one being updated, averaged over the
    preceding updates; None if there was none, or a single one, which starts at the policy that
    sampled."""
    update_kl: float | None = None
    """Nats per token between the policy before the preceding iteration's only update and after it;
    None if there was none, or several, or if it was not measured."""


class Smoothed:
    """One indicator's moving average, its baseline and its extremes."""

    def __init__(self, values: Sequence[float], baseline_iterations: int, smoothing: float) -> None:
        self.values = list(values)
        # While the baseline is incomplete: the first half, so that a fall does not define it.
        first = self.values[: min(baseline_iterations, max(3, len(self.values) // 2))]
        self.baseline = fmean(first) if first else math.nan
        smoothed, total, weight = [], 0.0, 0.0
        for value in self.values:
            # Dividing by the sum of weights removes the bias towards a start at zero.
            total, weight = smoothing * total + value, smoothing * weight + 1.0
            smoothed.append(total / weight)
        self.smoothed = smoothed
        self.now = smoothed[-1] if smoothed else math.nan
        self.best = max(smoothed[1:], default=math.nan)
        """Largest smoothed value except the first, a single measurement that may be luck."""
        self.lowest = min(smoothed[1:], default=math.nan)

    @property
    def ratio(self) -> float:
        """The current value over the baseline; 1 for a baseline near zero."""
        return self.now / self.baseline if self.baseline > 1e-6 else 1.0

    @property
    def share_of_best(self) -> float:
        """The current value over the best one; 1 for a best value near zero."""
        return self.now / self.best if self.best > 1e-6 else 1.0

    @property
    def noise(self) -> float:
        """The standard error of one measurement, estimated from differences between neighbors; a
        trend or a jump has little effect."""
        differences = [abs(b - a) for a, b in pairwise(self.values)]
        return 1.4826 / math.sqrt(2) * median(differences) if differences else 0.0


class RunHistory:
    """The smoothed series of every indicator of a run."""

    def __init__(
        self, history: Sequence[Indicators], baseline_iterations: int, smoothing: float
    ) -> None:
        def series(values: Iterable[float | None]) -> Smoothed:
            return Smoothed([v for v in values if v is not None], baseline_iterations, smoothing)

        self.num_iterations, self.baseline_iterations = len(history), baseline_iterations
        self.in_group_std = series(i.in_group_std for i in history)
        self.zero_std_fraction = series(i.zero_std_fraction for i in history)
        self.entropy = series(i.entropy for i in history)
        self.valid_format = series(i.valid_format for i in history)
        self.penalty_share = series(i.penalty_share for i in history)
        self.response_length = series(i.response_length for i in history)
        self.success = series(i.success for i in history)
        self.mean_return = series(i.mean_return for i in history)
        # Logarithms, so that a single outlier does not dominate the average.
        self.log_grad_norm = series(math.log(i.grad_norm) for i in history if i.grad_norm)
        self.log_approx_kl = series(math.log(i.approx_kl) for i in history if i.approx_kl)
        self.log_update_kl = series(math.log(i.update_kl) for i in history if i.update_kl)
        self.success_noise = max(_MIN_SUCCESS_NOISE, self.success.noise)
        self.success_error = self.success_noise * math.sqrt((1 - smoothing) / (1 + smoothing))
        """Standard error of the smoothed success."""

    @property
    def grad_norm_ratio(self) -> float:
        """The policy's gradient norm over its baseline, geometric means; 1 if it is unknown."""
        difference = self.log_grad_norm.now - self.log_grad_norm.baseline
        return 1.0 if math.isnan(difference) else math.exp(difference)

    @property
    def approx_kl(self) -> float:
        """The smoothed approximate KL of an iteration's updates, a geometric mean in nats per
        token; NaN if it is unknown."""
        return _geometric_mean(self.log_approx_kl)

    @property
    def update_kl(self) -> float:
        """The smoothed KL that an iteration's only update made, as ``approx_kl``."""
        return _geometric_mean(self.log_update_kl)

    @property
    def step_kl(self) -> float:
        """The approximate KL of updates or, where each iteration makes one, the KL of that; NaN if
        neither is known."""
        return self.update_kl if math.isnan(self.approx_kl) else self.approx_kl

    @property
    def bursts(self) -> Bursts:
        """The bursts of entropy in its fast average, without the first measurement, which may be
        luck."""
        fast = Smoothed(self.entropy.values, self.baseline_iterations, EARLY_SMOOTHING)
        return find_bursts(fast.smoothed[1:])

    @property
    def improved(self) -> bool:
        """Whether success or return is above its baseline by more than noise."""
        of_mean = math.hypot(
            self.success_error, self.success_noise / math.sqrt(self.baseline_iterations)
        )
        if self.success.now > self.success.baseline + 2 * of_mean:
            return True
        gain = self.mean_return.now - self.mean_return.baseline
        return gain > max(2 * self.mean_return.noise, 0.25 * self.in_group_std.baseline)

    def kl_ratios(self) -> dict[str, float]:
        """Return the KL of updates by name, without what is unknown."""
        found = {"approx_kl": self.approx_kl, "update_kl": self.update_kl}
        return {name: kl for name, kl in found.items() if not math.isnan(kl)}

    def ratios(self) -> dict[str, float]:
        """Return the numbers behind the alarm by name, as they are logged."""
        return self.kl_ratios() | {
            "in_group_std_ratio": self.in_group_std.ratio,
            "entropy_ratio": self.entropy.ratio,
            "grad_norm_ratio": self.grad_norm_ratio,
            "response_length_ratio": self.response_length.ratio,
            "valid_format_ratio": self.valid_format.share_of_best,
            "success_ratio": self.success.share_of_best,
            "zero_std_fraction": self.zero_std_fraction.now,
            "penalty_share": self.penalty_share.now,
            "entropy_burst": self.bursts.height,
            "entropy_bursts": float(self.bursts.count),
        }


def _geometric_mean(logs: Smoothed) -> float:
    """Return the smoothed geometric mean of logarithms; NaN if there are too few."""
    return math.exp(logs.now) if len(logs.values) >= _MIN_KL_VALUES else math.nan
