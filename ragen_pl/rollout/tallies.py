"""Tallies: trajectories, successes and learning gains, counted by difficulty or by start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ragen_pl.ops.selection import RETURN_ROUNDING
from ragen_pl.types import Trajectory, TrajectoryGroup

_STEP = 2.0**-40
"""Gains are multiples of it, so that sums of thousands are exact, in whatever order ranks add."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of trajectories and of their successes, also with weights."""

    successes: float
    trials: float
    gains: float = 0.0
    """Sum of the trajectories' learning gains (``learning_gains``)."""
    age: int = 0
    """Iterations since the last of them was played."""

    @property
    def success(self) -> float:
        """The success rate; there must be trials."""
        return self.successes / self.trials

    @property
    def gain(self) -> float:
        """The mean learning gain; there must be trials."""
        return self.gains / self.trials

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.successes + other.successes,
            self.trials + other.trials,
            self.gains + other.gains,
            min(self.age, other.age),
        )

    def older(self, decay: float = 1.0) -> Tally:
        """Return the tally an iteration later, every trajectory weighted by ``decay``."""
        return Tally(decay * self.successes, decay * self.trials, decay * self.gains, self.age + 1)


Tallies = Mapping[str, Tally]
"""Tallies by difficulty, or by initial state."""


def tally_by_difficulty(groups: Sequence[TrajectoryGroup]) -> Tallies:
    """Count trajectories and successes by difficulty, without those whose environment failed."""
    return sum_tallies(
        {trajectory.difficulty: Tally(float(trajectory.success), 1.0, gain)}
        for group in groups
        for trajectory, gain in _counted(group)
    )


def tally_by_start(groups: Sequence[TrajectoryGroup]) -> Tallies:
    """Count as ``tally_by_difficulty``, but by the seed of the start."""
    return sum_tallies(
        {str(group.seed): Tally(float(trajectory.success), 1.0, gain)}
        for group in groups
        for trajectory, gain in _counted(group)
    )


def _counted(group: TrajectoryGroup) -> Iterator[tuple[Trajectory, float]]:
    """Iterate over the members that count, with their learning gains."""
    members = [trajectory for trajectory in group.trajectories if trajectory.counts]
    returns, magnitudes = [m.total_reward for m in members], [m.reward_magnitude for m in members]
    yield from zip(members, learning_gains(returns, magnitudes), strict=True)


def learning_gains(returns: Sequence[float], magnitudes: Sequence[float]) -> list[float]:
    """Return each trajectory's absolute advantage: |return − mean| / standard deviation of the
    group, as a proxy for what can be learned from it (SEC, arXiv 2505.14970). Their mean is at most
    1, up to 2^-40.

    They are zeros where the returns are equal up to rounding, as ``ops.selection`` has it.

    Args:
        returns: The members' returns.
        magnitudes: The sum of absolute rewards behind each.
    """
    if not returns or max(returns) - min(returns) <= RETURN_ROUNDING * max(magnitudes):
        return [0.0] * len(returns)
    mean = fmean(returns)
    std = math.sqrt(fmean((each - mean) ** 2 for each in returns))
    return [_STEP * round(abs(each - mean) / std / _STEP) for each in returns]


def sum_tallies(parts: Iterable[Tallies]) -> Tallies:
    """Return the sums by difficulty, sorted by name."""
    total: dict[str, Tally] = {}
    for part in parts:
        for name, tally in part.items():
            total[name] = total[name] + tally if name in total else tally
    return dict(sorted(total.items()))
