"""Prioritized level replay: starts from which there was much to learn are played again."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum.base import Curriculum
from ragen_pl.rollout.tallies import Tallies

_REPLAYED = 1e-6
"""Weight of a replayed start in averages over the environment's own mix of starts."""


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
        replay: Expected share of the starts that are replayed, once there are enough to replay. At
            least one start of an iteration is new, so where there is only one, none is replayed.
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
        count = min(int(self.replay * wanted + rng.random()), wanted - 1, len(known) // 2)
        priorities = self.priorities(progress)
        replayed: list[GroupSeed] = []
        for _ in range(count):
            weights = [priorities[str(start.seed)] for start in known]
            # Where only age counts, what was just played has none.
            (start,) = rng.choices(known, weights if any(weights) else None)
            known.remove(start)
            replayed.append(replace(start, weight=_REPLAYED))
        new = fresh[: wanted - count]
        even = wanted / len(new) if new else 1.0  # all of the uniform mix is theirs
        return [*(replace(start, weight=even) for start in new), *replayed]

    def priorities(self, progress: Tallies) -> dict[str, float]:
        """Return the probability of each remembered start to be replayed next."""
        ranking = sorted(progress, key=lambda seed: (-progress[seed].gain, int(seed)))
        by_rank = {
            seed: rank ** (-1 / self.score_temperature)
            for rank, seed in enumerate(ranking, start=1)
        }
        ages = {seed: tally.age for seed, tally in progress.items()}
        total, total_age = math.fsum(by_rank.values()), sum(ages.values())
        even = 1.0 / max(1, len(progress))
        return {
            seed: (1.0 - self.staleness) * by_rank[seed] / total
            + self.staleness * (ages[seed] / total_age if total_age else even)
            for seed in progress
        }

    def learn(self, progress: Tallies, played: Tallies) -> Tallies:
        """Remember what was played, at its latest score, and let the rest grow older."""
        merged = {**{seed: tally.older() for seed, tally in progress.items()}, **played}
        best = sorted(merged, key=lambda seed: (-merged[seed].gain, merged[seed].age, int(seed)))
        return {seed: merged[seed] for seed in sorted(best[: self.memory], key=int)}
