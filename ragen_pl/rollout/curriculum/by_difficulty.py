"""Curricula that weigh difficulties by the current policy's success at them."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum.base import UNKNOWN, Curriculum, difficulty_of
from ragen_pl.rollout.shares import expected_counts, rounded_counts
from ragen_pl.rollout.tallies import Tallies, Tally, sum_tallies
from ragen_pl.runtime.user_classes import calling

_FORGOTTEN = 0.01
"""A difficulty with fewer trials left, after decay, counts as not played."""


@dataclass(frozen=True)
class ByDifficulty(Curriculum):
    """Base class of curricula that weigh difficulties by the current policy's success at them.

    A difficulty's expected share of the starts is proportional to its weight, however many
    candidates it has; what it lacks in candidates goes to the others by their weights. Starts of
    unknown difficulty keep the share that they have among the candidates.

    Args:
        pool_factor: Candidates per start to choose. The environment names the difficulty of each,
            by default with a reset (``TextEnv.difficulty_of``).
        decay: Factor by which each iteration reduces the weight of what was played before it.
    """

    pool_factor: int = 4
    decay: float = 0.8

    def __post_init__(self) -> None:
        if self.pool_factor < 2:
            raise ValueError(
                f"curriculum.pool_factor is {self.pool_factor}; it must be at least 2, or there is "
                "nothing to choose from"
            )
        if not 0 <= self.decay < 1:
            raise ValueError(f"curriculum.decay is {self.decay}; it must lie in [0, 1)")

    @abstractmethod
    def weight(self, difficulty: str, success: float | None) -> float:
        """Return the weight, ≥ 0, of a difficulty.

        Args:
            difficulty: The environment's name of it.
            success: Running success rate at it; None where it has not been played.
        """

    def weigh(self, difficulty: str, tally: Tally | None) -> float:
        """Return the weight, ≥ 0, of a difficulty by all that is known of it; None where it has not
        been played. By default that is ``weight`` of the success rate."""
        return self.weight(difficulty, None if tally is None else tally.success)

    def pool_size(self, wanted: int) -> int:
        """Return ``pool_factor`` candidates per start."""
        return self.pool_factor * wanted

    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        """Choose by the weights of difficulties, evenly within each."""
        members: defaultdict[str, list[GroupSeed]] = defaultdict(list)
        for candidate, difficulty in zip(pool, difficulties, strict=True):
            members[difficulty].append(candidate)
        available = {name: len(members[name]) for name in sorted(members)}
        uniform_share = wanted / len(pool)
        expected = {
            name: uniform_share * available.pop(name) for name in {UNKNOWN} & members.keys()
        }
        weights = {name: self._checked_weight(name, progress.get(name)) for name in available}
        left = wanted - sum(expected.values())
        expected |= expected_counts(available, weights, left)
        chosen = []
        for name, count in rounded_counts(expected, rng).items():
            probability = expected[name] / len(members[name])
            chosen += [
                replace(start, weight=uniform_share / probability)
                for start in rng.sample(members[name], count)
            ]
        return sorted(chosen, key=lambda start: start.group_id)

    def _checked_weight(self, difficulty: str, tally: Tally | None) -> float:
        success = None if tally is None else tally.success
        with calling(self, "weight", "difficulty, success"):
            weight: object = self.weigh(difficulty, tally)
        if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:  # NaN is not
            raise ConfigError(
                f"curriculum: {type(self).__name__}.weight({difficulty!r}, "
                f"{success}) returned {weight!r}; it must return a finite number ≥ 0"
            )
        return float(weight)

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Add what was played to the decayed tallies; drop what has all but decayed away."""
        before = {name: tally.older(self.decay) for name, tally in progress.items()}
        return {
            name: tally
            for name, tally in sum_tallies((before, played)).items()
            if name != UNKNOWN and tally.trials >= _FORGOTTEN
        }

    def check(self, env: TextEnv, seeds: Iterable[int]) -> None:
        """Check that the environment names at least two difficulties among these seeds."""
        checked, found, tried = CheckedEnv(env), set[str](), 0
        for seed in seeds:
            tried += 1
            found.add(difficulty_of(checked, seed))
            if len(found - {UNKNOWN}) > 1:
                return
        named = ", ".join(map(repr, sorted(found - {UNKNOWN})))
        fault = f"names only the difficulty {named}" if named else "names no difficulty"
        raise ValueError(
            f"curriculum {type(self).__name__} chooses by difficulty, but {type(env).__name__} "
            f'{fault} at the first {tried} training starts: return a "difficulty" in the info of '
            "reset, or set data.curriculum to Uniform (data.mixture.curricula.NAME for one "
            "environment of a mixture)"
        )


@dataclass(frozen=True)
class TargetSuccess(ByDifficulty):
    """A preference for difficulties at which success is near a target, by default one half.

    The weight of a difficulty with running success p is (p/t)^(2t) ((1-p)/(1-t))^(2(1-t)) with the
    target t, at least ``floor``; for t = 1/2 this is 4p(1-p), proportional to the variance of
    success within a group. A difficulty that has not been played has weight 1, the maximum.

    Args:
        target: Success rate at which a difficulty has the most weight.
        floor: Smallest weight, relative to the largest possible one, so that solved and unsolved
            difficulties are still played now and then.
    """

    target: float = 0.5
    floor: float = 0.16

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.target < 1:
            raise ValueError(f"curriculum.target is {self.target}; it must lie in (0, 1)")
        if not 0 < self.floor <= 1:
            raise ValueError(
                f"curriculum.floor is {self.floor}; it must lie in (0, 1]: a difficulty that is "
                "never played again could not be found solvable, or forgotten"
            )

    def weight(self, difficulty: str, success: float | None) -> float:
        """Return the weight by the distance of success from the target."""
        if success is None:
            return 1.0
        target = self.target
        won = math.pow(success / target, 2 * target)
        lost = math.pow((1 - success) / (1 - target), 2 * (1 - target))
        return max(self.floor, won * lost)


@dataclass(frozen=True)
class LearningProgress(ByDifficulty):
    """A preference for difficulties at which the policy has most to learn: SEC, the self-evolving
    curriculum (arXiv 2505.14970).

    The gain of a difficulty is the mean absolute advantage of its trajectories, the distance of a
    return from its group's mean in standard deviations: 0 where all members get the same, and
    2·√(p(1−p)) on average for a success rate of p in a large group. Difficulties are weighted by
    exp(gain / temperature) with running gains (SEC's temporal difference, weighted by
    trajectories); one that has not been played counts with the largest gain, 1. Unlike
    ``TargetSuccess`` it sees partial rewards, too.

    Args:
        temperature: Temperature of the choice; a small one plays little but the best.
    """

    temperature: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.01 <= self.temperature < math.inf:
            raise ValueError(
                f"curriculum.temperature is {self.temperature}; it must be at least 0.01 (0.2 to 1 "
                "is usual)"
            )

    def weight(self, difficulty: str, success: float | None) -> float:
        """Return the weight of a difficulty of which only the success is known, with the gain that
        a large group would have."""
        gain = 1.0 if success is None else 2.0 * math.sqrt(success * (1.0 - success))
        return self._weight_of(gain)

    def weigh(self, difficulty: str, tally: Tally | None) -> float:
        """Return the weight by the running gain."""
        return self._weight_of(1.0 if tally is None else tally.gain)

    def _weight_of(self, gain: float) -> float:
        return math.exp((gain - 1.0) / self.temperature)
