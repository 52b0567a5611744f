"""Tell collapse from convergence by the history of a few indicators (RAGEN's Echo Trap, §4).

Falling spread and entropy are no proof: both also fall when a policy becomes good and sure. What
tells them apart is success. Every alarm therefore needs a *harm* (success well below its best, or
the return at the format penalty's floor, or no progress at all) beside a *sign* (spread, entropy,
format or gradients out of their usual range).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import pairwise
from statistics import fmean, median

_MARGIN = 5.0
"""Standard errors of the smoothed success by which it must have fallen. Its best is the luckiest
of many looks, which alone explains up to about four."""
_LEAST_NOISE = 0.02
"""Of success per iteration, for policies so good or bad that it hardly varies."""


class Level(IntEnum):
    """Grade the alarm."""

    GREEN = 0
    AMBER = 1
    RED = 2


@dataclass(frozen=True, slots=True)
class Indicators:
    """Hold one iteration's measurements, over all ranks and unfiltered."""

    in_group_std: float
    """Mean over groups of the returns' standard deviation."""
    zero_std_share: float
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


@dataclass(frozen=True)
class CollapseRules:
    """Set the thresholds; ratios compare a smoothed indicator with its baseline or its best.

    Args:
        smoothing: Weight of the past in the moving averages.
        success_fell: Success below this share of its best, together with a sign, is amber.
        success_collapsed: Below this share it is red with a sign, amber without.
        success_gone: Below this share it is red.
        solved: Success from which on lost spread is convergence, even where nothing was gained.
        spread_fell: In-group std below this share of its baseline is a sign.
        spread_dead: Below this share, and success neither gained nor solved, is red.
        zero_std_share: More groups than this without any spread are a sign.
        entropy_fell: Entropy below this share of its baseline is a sign.
        entropy_rose: Entropy above this multiple of its baseline is a sign.
        format_broke: Valid-format rate below this share of its best is a sign.
        gradient_spiked: Policy gradient norm above this multiple of its baseline is a sign.
        floor_share: More trajectories than this at the penalty floor are red.
    """

    smoothing: float = 0.8
    success_fell: float = 0.75
    success_collapsed: float = 0.5
    success_gone: float = 0.25
    solved: float = 0.6
    spread_fell: float = 0.5
    spread_dead: float = 0.1
    zero_std_share: float = 0.6
    entropy_fell: float = 0.5
    entropy_rose: float = 2.0
    format_broke: float = 0.8
    gradient_spiked: float = 5.0
    floor_share: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 <= self.smoothing < 1.0:
            raise ValueError(f"rules.smoothing is {self.smoothing}; it must lie in [0, 1)")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("entropy_rose", "gradient_spiked"):
                if value <= 1.0:
                    raise ValueError(f"rules.{field.name} is {value}; a multiple must be above 1")
            elif not 0.0 <= value <= 1.0:
                raise ValueError(f"rules.{field.name} is {value}; a share must lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say how bad it is, why, and by which numbers."""

    level: Level
    reason: str
    """Names values and baselines; empty when green."""
    ratios: Mapping[str, float]
    """Of smoothed indicators to their baseline or best; empty before there is a baseline."""


CALM = Verdict(Level.GREEN, "", {})


def judge(history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules) -> Verdict:
    """Judge the last iteration of a history; green until the baseline is complete.

    The first ``baseline_iterations`` say what is usual for this run.
    """
    if len(history) <= baseline_iterations:
        return Verdict(Level.GREEN, "", {})
    view = _View(history, baseline_iterations, rules)
    signs = _signs(view)
    harms = (_at_floor(view), _success_lost(view, bool(signs)), _no_progress(view))
    level, harm = max(harms, key=lambda finding: finding[0])  # of equal ones the first
    if level is Level.GREEN:
        return Verdict(level, "", view.ratios())
    reason = f"{harm} while {' and '.join(signs)}" if signs else harm
    return Verdict(level, reason, view.ratios())


class _Series:
    """Smooth one indicator and hold it against its past."""

    def __init__(self, values: Sequence[float], baseline_iterations: int, smoothing: float) -> None:
        self.values = list(values)
        first = self.values[:baseline_iterations]
        self.baseline = fmean(first) if first else math.nan
        smoothed, total, weight = [], 0.0, 0.0
        for value in self.values:
            # Dividing by the weights so far undoes the pull towards a start at zero.
            total, weight = smoothing * total + value, smoothing * weight + 1.0
            smoothed.append(total / weight)
        self.now = smoothed[-1] if smoothed else math.nan
        self.best = max(smoothed[1:], default=math.nan)
        """Of the smoothed values; the first is a single look and may be luck."""

    @property
    def ratio(self) -> float:
        """Now against the baseline; 1 where there is no baseline to speak of."""
        return self.now / self.baseline if self.baseline > 1e-6 else 1.0

    @property
    def share_of_best(self) -> float:
        return self.now / self.best if self.best > 1e-6 else 1.0

    @property
    def noise(self) -> float:
        """Estimate one look's standard error from neighbours: a trend or a jump hardly counts."""
        steps = [abs(b - a) for a, b in pairwise(self.values)]
        return 1.4826 / math.sqrt(2) * median(steps) if steps else 0.0


class _View:
    """Hold every indicator's series."""

    def __init__(
        self, history: Sequence[Indicators], baseline_iterations: int, rules: CollapseRules
    ) -> None:
        def series(values: Iterable[float]) -> _Series:
            return _Series(list(values), baseline_iterations, rules.smoothing)

        self.rules = rules
        self.length, self.baseline_iterations = len(history), baseline_iterations
        self.spread = series(i.in_group_std for i in history)
        self.zero = series(i.zero_std_share for i in history)
        self.entropy = series(i.entropy for i in history)
        self.format = series(i.valid_format for i in history)
        self.floor = series(i.penalty_share for i in history)
        self.success = series(i.success for i in history)
        self.returns = series(i.mean_return for i in history)
        # Logarithms, so that a single outlier does not drag the average along.
        self.log_grad = series(math.log(i.grad_norm) for i in history if i.grad_norm)
        self.look = max(_LEAST_NOISE, self.success.noise)
        self.error = self.look * math.sqrt((1 - rules.smoothing) / (1 + rules.smoothing))
        """Standard error of the smoothed success."""

    @property
    def grad_ratio(self) -> float:
        difference = self.log_grad.now - self.log_grad.baseline
        return 1.0 if math.isnan(difference) else math.exp(difference)

    @property
    def improved(self) -> bool:
        """Whether success or return is above its baseline by more than chance explains."""
        of_mean = math.hypot(self.error, self.look / math.sqrt(self.baseline_iterations))
        if self.success.now > self.success.baseline + 2 * of_mean:
            return True
        gain = self.returns.now - self.returns.baseline
        return gain > max(2 * self.returns.noise, 0.25 * self.spread.baseline)

    def ratios(self) -> dict[str, float]:
        return {
            "in_group_std_ratio": self.spread.ratio,
            "entropy_ratio": self.entropy.ratio,
            "grad_norm_ratio": self.grad_ratio,
            "valid_format_ratio": self.format.share_of_best,
            "success_ratio": self.success.share_of_best,
            "zero_std_share": self.zero.now,
            "penalty_share": self.floor.now,
        }


def _signs(view: _View) -> list[str]:
    """List what is out of its usual range; alone none of it is an alarm."""
    rules, entropy = view.rules, view.entropy
    moved = abs(entropy.now - entropy.baseline) > 0.05  # less is no matter, whatever the ratio
    found = [
        (
            view.spread.ratio < rules.spread_fell,
            f"in-group std is {view.spread.now:.3g} (baseline {view.spread.baseline:.3g})",
        ),
        (
            view.zero.now > rules.zero_std_share,
            f"{view.zero.now:.0%} of groups have no spread (baseline {view.zero.baseline:.0%})",
        ),
        (
            moved and not rules.entropy_fell <= entropy.ratio <= rules.entropy_rose,
            f"entropy is {entropy.now:.3g} (baseline {entropy.baseline:.3g})",
        ),
        (
            view.format.share_of_best < rules.format_broke,
            f"{view.format.now:.0%} of turns follow the format (best {view.format.best:.0%})",
        ),
        (
            view.grad_ratio > rules.gradient_spiked,
            f"the policy's gradient norm is {math.exp(view.log_grad.now):.3g} "
            f"(baseline {math.exp(view.log_grad.baseline):.3g})"
            if view.log_grad.values
            else "",
        ),
    ]
    return [text for is_found, text in found if is_found]


def _at_floor(view: _View) -> tuple[Level, str]:
    """Find returns pinned at the format penalty: nothing the agent says is understood.

    A run that began so is given twice the baseline's time, and longer while it gets better.
    """
    floor = view.floor
    if floor.now <= view.rules.floor_share:
        return Level.GREEN, ""
    text = (
        f"{floor.now:.0%} of trajectories hold no valid turn (baseline {floor.baseline:.0%}), "
        f"which pins the return at {view.returns.now:.3g}"
    )
    had_time = view.length >= 2 * view.baseline_iterations
    stuck = had_time and floor.now >= floor.baseline - 0.02
    return (Level.RED if floor.baseline < 0.5 or stuck else Level.AMBER), text


def _success_lost(view: _View, has_signs: bool) -> tuple[Level, str]:
    """Find success well below its best, by more than noise explains."""
    rules, success = view.rules, view.success
    if success.best - success.now <= _MARGIN * view.error:
        return Level.GREEN, ""
    share = success.share_of_best
    if share < rules.success_gone:
        level = Level.RED
    elif share < rules.success_collapsed:
        level = Level.RED if has_signs else Level.AMBER
    else:
        level = Level.AMBER if share < rules.success_fell and has_signs else Level.GREEN
    return level, f"success fell to {success.now:.2f} (best {success.best:.2f})"


def _no_progress(view: _View) -> tuple[Level, str]:
    """Find variety lost without anything gained: the template that leads nowhere."""
    rules, success = view.rules, view.success
    if view.improved or success.now >= rules.solved:
        return Level.GREEN, ""
    text = f"success stays at {success.now:.2f} (baseline {success.baseline:.2f})"
    if view.spread.ratio < rules.spread_dead:
        return Level.RED, text
    both = view.spread.ratio < rules.spread_fell and view.entropy.ratio < rules.entropy_fell
    return (Level.AMBER if both else Level.GREEN), text
