"""Curricula: which starts of the seed stream are collected next, by difficulty and success so far.

A curriculum that chooses is offered more seeds than are wanted, the next ones of the run's seed
stream, and their difficulties, which the environment names without playing. Seeds that are not
chosen are not offered again; ``LevelReplay`` plays some of those that were chosen again.
Demonstrations and evaluation sets have seeds of their own.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, ClassVar

from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv, EnvError
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.stats import (
    Tallies,
    Tally,
    sum_tallies,
    tally_by_difficulty,
    tally_by_start,
)
from ragen_pl.types import TrajectoryGroup

UNKNOWN = ""
"""Difficulty of a start for which the environment names none."""
_FORGOTTEN = 0.01
"""A difficulty with fewer trials left, after decay, counts as not played."""
_ROUNDING = 1e-9


class Curriculum(ABC):
    """A choice of the starts that are collected next.

    The constructor's arguments are the configuration and never change. What a run learns about its
    starts, the *progress*, is a tally per difficulty, which is passed in and saved with the run.
    All methods are pure functions, called with equal arguments on every rank.
    """

    by_start: ClassVar[bool] = False
    """Whether the progress is a tally per start, by its seed, instead of one per difficulty."""

    def tally(self, groups: Sequence[TrajectoryGroup]) -> Tallies:
        """Count what was played, as ``learn`` takes it."""
        return tally_by_start(groups) if self.by_start else tally_by_difficulty(groups)

    def candidates(self, pool: Sequence[GroupSeed], progress: Tallies) -> list[GroupSeed]:
        """Return the starts to choose from: the pool, or further ones with negative group ids."""
        return list(pool)

    def pool_size(self, wanted: int) -> int:
        """Return the number of candidates from which ``wanted`` starts are chosen."""
        return wanted

    @abstractmethod
    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        """Choose starts without replacement; not called where there are no more than are wanted.

        Args:
            pool: The candidates, in the order of the seed stream.
            difficulties: Their difficulties; ``UNKNOWN`` where the environment names none.
            wanted: Number of starts to choose.
            progress: Success so far.
            rng: Source of all randomness.

        Returns:
            The chosen ones. The ``weight`` of each is the probability that ``Uniform`` would have
            chosen it over the probability of this choice, for estimates that do not depend on the
            curriculum.
        """

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Return the progress after an iteration.

        Args:
            progress: The progress before it.
            played: Tally of all that the iteration played, on all ranks, over every collection.
        """
        return {}

    def check(self, env: TextEnv, seeds: Iterable[int]) -> None:  # noqa: B027 (optional)
        """Check before a run that there is something to choose between.

        Args:
            env: The training environment.
            seeds: Training seeds to try.

        Raises:
            ValueError: if there is not; the message says what to do.
        """


@dataclass(frozen=True)
class Uniform(Curriculum):
    """Every start of the seed stream, in its order: the environment's own mix of difficulties."""

    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        return list(pool[:wanted])


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
        weight = self.weigh(difficulty, tally)
        if not 0 <= weight < math.inf:  # NaN is not
            raise ConfigError(
                f"data.curriculum is {type(self).__name__}, whose weight({difficulty!r}, "
                f"{success}) returned {weight!r}; it must return a finite number ≥ 0"
            )
        return weight

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Add what was played to the decayed tallies; drop what has all but decayed away."""
        before = {name: tally.scaled(self.decay) for name, tally in progress.items()}
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
            f"data.curriculum is {type(self).__name__}, but {type(env).__name__} {fault} at the "
            f'first {tried} training starts: return a "difficulty" in the info of reset, or set '
            "data.curriculum to Uniform"
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


@dataclass(frozen=True)
class LevelReplay(Curriculum):
    """Prioritized level replay (Jiang et al., arXiv 2010.03934): starts from which there was much
    to learn are played again.

    A part of each collection are starts that were played before, the rest new ones. The score of a
    start is the mean absolute advantage of its trajectories when it was last played
    (``LearningProgress``). A start is replayed with a probability that falls with the rank of its
    score, and rises with the time since it was last played. Averages over the environment's own mix
    of starts leave replayed ones out.

    Args:
        replay: Largest share of the starts that are replayed, which it is once there are enough to
            replay.
        memory: Number of starts that are remembered, those of the highest scores.
        score_temperature: Temperature β of the priority by rank, rank^(−1/β); the smaller, the more
            the best ranks are preferred.
        staleness: Share ρ of the probability that goes by the time since a start was last played.
    """

    by_start: ClassVar[bool] = True
    replay: float = 0.5
    memory: int = 1000
    score_temperature: float = 0.3
    staleness: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.replay < 1:
            raise ValueError(f"curriculum.replay is {self.replay}; it must lie in (0, 1)")
        if self.memory < 1:
            raise ValueError(f"curriculum.memory is {self.memory}; it must be at least 1")
        if not 0.01 <= self.score_temperature < math.inf:
            raise ValueError(
                f"curriculum.score_temperature is {self.score_temperature}; it must be at least "
                "0.01 (0.1 to 1 is usual)"
            )
        if not 0 <= self.staleness <= 1:
            raise ValueError(f"curriculum.staleness is {self.staleness}; it must lie in [0, 1]")

    def candidates(self, pool: Sequence[GroupSeed], progress: Tallies) -> list[GroupSeed]:
        """Return the new starts and the remembered ones."""
        known = [GroupSeed(-1 - place, int(seed)) for place, seed in enumerate(progress)]
        return [*pool, *known]

    def choose(
        self,
        pool: Sequence[GroupSeed],
        difficulties: Sequence[str],
        wanted: int,
        progress: Tallies,
        rng: random.Random,
    ) -> list[GroupSeed]:
        """Choose remembered starts by their priority and fill up with new ones, in their order."""
        fresh = [start for start in pool if start.group_id >= 0]
        known = [start for start in pool if start.group_id < 0]
        # At least one start is new; of the known ones half at most, or each would be certain.
        count = min(int(self.replay * wanted), len(known) // 2)
        priorities = self.priorities(progress)
        replayed: list[GroupSeed] = []
        for _ in range(count):
            weights = [priorities[str(start.seed)] for start in known]
            (start,) = rng.choices(known, weights)
            known.remove(start)
            replayed.append(replace(start, weight=_REPLAYED))
        return [*fresh[: wanted - count], *replayed]

    def priorities(self, progress: Tallies) -> dict[str, float]:
        """Return the probability of each remembered start to be replayed next."""
        ranking = sorted(progress, key=lambda seed: (-progress[seed].gain, int(seed)))
        by_rank = {seed: rank ** (-1 / self.score_temperature) for rank, seed in _ranked(ranking)}
        ages = {seed: _age(tally) for seed, tally in progress.items()}
        total, oldest = math.fsum(by_rank.values()), math.fsum(ages.values())
        even = 1.0 / max(1, len(progress))
        return {
            seed: (1.0 - self.staleness) * by_rank[seed] / total
            + self.staleness * (ages[seed] / oldest if oldest else even)
            for seed in progress
        }

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Remember what was played, at its latest score, and let the rest grow older."""
        older = {seed: tally.scaled(_AGING) for seed, tally in progress.items()}
        latest = {seed: tally.scaled(1.0 / tally.trials) for seed, tally in played.items()}
        merged = {**older, **latest}
        best = sorted(
            merged, key=lambda seed: (-merged[seed].gain, -merged[seed].trials, int(seed))
        )
        return {seed: merged[seed] for seed in sorted(best[: self.memory], key=int)}


_AGING = 0.99
"""Factor by which a remembered start's tally shrinks in an iteration, from 1 trial when it was
played, which keeps its score and tells its age."""
_REPLAYED = 1e-6
"""Weight of a replayed start in averages over the environment's own mix of starts."""


def _ranked(items: Sequence[str]) -> Iterable[tuple[int, str]]:
    return enumerate(items, start=1)


def _age(tally: Tally) -> float:
    """Return the iterations since a remembered start was last played."""
    return max(0.0, math.log(tally.trials) / math.log(_AGING))


def saved_progress(curriculum: Curriculum, progress: Tallies) -> dict[str, Any]:
    """Return a curriculum's progress as plain data, with what its names stand for."""
    tallies = {name: list(astuple(tally)) for name, tally in progress.items()}
    return {"progress": tallies, "by_start": curriculum.by_start}


def restored_progress(curriculum: Curriculum, saved: Mapping[str, Any]) -> Tallies:
    """Return saved progress; none if it was not saved, as in older checkpoints, or if a curriculum
    of the other kind kept it, whose names are starts in place of difficulties."""
    if saved.get("by_start", curriculum.by_start) != curriculum.by_start:
        return {}
    return {name: Tally(*counts) for name, counts in saved.get("progress", {}).items()}


def choose_starts(
    curriculum: Curriculum,
    env: TextEnv,
    pool: Sequence[GroupSeed],
    wanted: int,
    progress: Tallies,
    rng: random.Random,
) -> list[GroupSeed]:
    """Choose a collection's starts from its candidates; every rank must call it, and gets the same
    ones.

    A start at which the environment fails is of unknown difficulty; if it is chosen, it fails again
    where it is played, and is reported there.

    Raises:
        ConfigError: if the curriculum does not return as many different candidates as are wanted.
    """
    pool = curriculum.candidates(pool, progress)
    if len(pool) == wanted:
        return list(pool)
    names = [UNKNOWN] * len(pool) if curriculum.by_start else _difficulties(env, pool)
    chosen = curriculum.choose(pool, names, wanted, progress, rng)
    if not all(0 < start.weight < math.inf for start in chosen):  # NaN is not
        raise ConfigError(
            f"data.curriculum is {type(curriculum).__name__}, whose choose returned starts with "
            f"the weights {[start.weight for start in chosen]!r:.80}; they must be positive and "
            "finite"
        )
    candidates = {(start.group_id, start.seed) for start in pool}
    distinct = {(start.group_id, start.seed) for start in chosen}
    if len(chosen) != wanted or len(distinct) != wanted or not distinct <= candidates:
        raise ConfigError(
            f"data.curriculum is {type(curriculum).__name__}, whose choose returned {len(chosen)} "
            f"starts; it must return {wanted} different ones of the {len(pool)} candidates"
        )
    return chosen


def _difficulties(env: TextEnv, pool: Sequence[GroupSeed]) -> list[str]:
    """Return the difficulty of each candidate; each rank asks for its share of them."""
    checked, size = CheckedEnv(env), world_size()
    own = [difficulty_of(checked, start.seed) for start in pool[rank() :: size]]
    parts = gather_objects(own)
    return [parts[place % size][place // size] for place in range(len(pool))]


def difficulty_of(env: CheckedEnv, seed: int) -> str:
    """Return the difficulty of a start; ``UNKNOWN`` if the environment fails or names none."""
    try:
        return env.difficulty_of(seed)
    except EnvError:
        return UNKNOWN


def expected_counts(
    available: Mapping[str, int], weights: Mapping[str, float], wanted: float
) -> dict[str, float]:
    """Split a number in proportion to weights, to none more than it has available.

    What one cannot take goes to the others by their weights; those of weight 0 come last.

    Args:
        available: Candidates of each; together at least ``wanted``.
        weights: Weights ≥ 0.
        wanted: The number to split.
    """
    expected: dict[str, float] = {}
    left = wanted
    while len(expected) < len(available):
        rest = [name for name in available if name not in expected]
        by: Mapping[str, float] = weights if any(weights[name] for name in rest) else available
        total = math.fsum(by[name] for name in rest)
        shares = {name: left * by[name] / total for name in rest}
        full = [name for name in rest if shares[name] >= available[name] - _ROUNDING]
        if not full:
            return expected | shares
        expected |= {name: float(available[name]) for name in full}
        left = max(0.0, left - sum(available[name] for name in full))
    return expected


def rounded_counts(expected: Mapping[str, float], rng: random.Random) -> dict[str, int]:
    """Round numbers whose sum is whole up or down, so that the sum stays and each has the given
    expectation (systematic sampling)."""
    offset, reached, position = rng.random(), 0, 0.0
    counts = {}
    for name, value in expected.items():
        position += value
        # Rounding keeps numbers that are whole, up to the error of the sum, from going astray.
        passed = math.ceil(round(position, 9) - offset)
        counts[name], reached = passed - reached, passed
    return counts
