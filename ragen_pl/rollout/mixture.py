"""Mixtures of environments: how many groups each gets, and from which starts.

Every environment of a mixture has a seed stream and a curriculum's progress of its own, so that it
meets the starts that it would meet in a run alone. All choices are pure functions of the run's seed
and of a saved state, and equal on every rank.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.curriculum import (
    Curriculum,
    choose_starts,
    restored_progress,
    saved_progress,
)
from ragen_pl.rollout.curriculum.checked import learned, pool_size_of, tally_of
from ragen_pl.rollout.seeds import group_seeds
from ragen_pl.rollout.shares import rounded_counts
from ragen_pl.rollout.tallies import Tallies, sum_tallies
from ragen_pl.types import TrajectoryGroup

_DECAY = 0.8
"""Factor by which each iteration reduces the weight of earlier ones in running means."""
_SMALLEST_STD = 1e-6


@dataclass(frozen=True)
class MixtureConfig:
    """How a run mixes the environments of ``data.envs``.

    Args:
        shares: Shares of the environments by name, in any unit; 1 for those not named. null is as
            if not named: where a config leaves an environment out, its share can be, too.
        shares_of: What the shares are of: trajectories, or sampled tokens. An environment whose
            trajectories are twice as long gets half as many groups for the same share of tokens.
        normalize_rewards: Whether the rewards that train are divided by the running standard
            deviation of the environment's returns, so that an environment that pays more does not
            outweigh the others. Logged returns, and filters, see them as they are.
        limits: Limits of single environments, by name; the others have ``data.rollout``'s.
        curricula: Curricula of single environments, by name; the others have ``data.curriculum``.
    """

    shares: Mapping[str, float | None] = field(default_factory=dict)
    shares_of: Literal["trajectories", "tokens"] = "trajectories"
    normalize_rewards: bool = False
    limits: Mapping[str, TrajectoryLimits | None] = field(default_factory=dict)
    curricula: Mapping[str, Curriculum | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            if share is not None and not 0 < share < math.inf:
                raise ValueError(
                    f"mixture.shares.{name} is {share}; it must be above 0 (set data.envs.{name} "
                    "to null to leave an environment out)"
                )

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse shares, limits and curricula of environments that the mixture does not have.

        Raises:
            ValueError: naming the key and the environments.
        """
        known = list(names)
        for key in ("shares", "limits", "curricula"):
            for name, value in getattr(self, key).items():
                if value is not None and name not in known:
                    raise ValueError(
                        f"mixture.{key} names {name!r}, which is not among data.envs: "
                        f"{', '.join(known)}"
                    )

    def share(self, name: str) -> float:
        """Return the share of an environment, in the unit of ``shares``."""
        share = self.shares.get(name)
        return 1.0 if share is None else share

    def rollout_in(self, name: str, rollout: RolloutConfig) -> RolloutConfig:
        """Return the run's rollout with the limits of an environment.

        Raises:
            ValueError: when a limit is above the run's.
        """
        limits = self.limits.get(name)
        return rollout if limits is None else limits.narrow(rollout, f"mixture.limits.{name}")


@dataclass(slots=True)
class _Running:
    """What is known of an environment from the iterations so far."""

    position: int = 0
    """Position in its seed stream at which the next iteration begins."""
    progress: Tallies = field(default_factory=dict)
    trajectories: float = 0.0
    """Number of trajectories behind the sums, decayed."""
    tokens: float = 0.0
    """Sum of their sampled tokens."""
    total: float = 0.0
    """Sum of their returns."""
    squares: float = 0.0
    """Sum of their squared returns."""

    def add(self, facts: Sequence[tuple[float, float]]) -> None:
        """Count trajectories, given as tokens and return, after decaying the earlier ones."""
        for name in ("trajectories", "tokens", "total", "squares"):
            setattr(self, name, _DECAY * getattr(self, name))
        for tokens, total in facts:
            self.trajectories += 1.0
            self.tokens += tokens
            self.total += total
            self.squares += total * total

    @property
    def std(self) -> float:
        """Running standard deviation of returns; 1 without any."""
        if not self.trajectories:
            return 1.0
        mean = self.total / self.trajectories
        std = math.sqrt(max(0.0, self.squares / self.trajectories - mean * mean))
        return std if std > _SMALLEST_STD else 1.0


class Mixture:
    """The environments of a run, their shares of a collection, and where each of them is.

    Args:
        envs: The environments by name, at least two.
        config: Shares, and what they are of.
        curriculum: The curriculum of environments that have none of their own.
        run_seed: Seed of the run.
    """

    def __init__(
        self,
        envs: Mapping[str, TextEnv],
        config: MixtureConfig,
        curriculum: Curriculum,
        run_seed: int,
    ) -> None:
        self.envs, self.config, self.run_seed = envs, config, run_seed
        self.curricula = {name: config.curricula.get(name) or curriculum for name in envs}
        self._running = {name: _Running() for name in envs}
        self._taken = dict.fromkeys(envs, 0)
        """Seeds that the current iteration takes from each stream."""

    def check_difficulties(self, difficulties: Iterable[str]) -> None:
        """Refuse difficulties of a warm start without the name of an environment before them.

        Raises:
            ValueError: for such as ``2-3`` in place of ``sokoban/2-3``.
        """
        for each in difficulties:
            if each.partition("/")[0] not in self.envs:
                raise ValueError(
                    f"data.warm_start.difficulties has {each!r}; in a mixture a difficulty begins "
                    f"with an environment and a slash, such as {next(iter(self.envs))}/{each}"
                )

    def counts(self, iteration: int, groups: int) -> dict[str, int]:
        """Return the number of groups of each environment in every collection of an iteration.

        Rounding is systematic and drawn anew: each environment has its share in expectation.
        """
        weights = {name: self.config.share(name) / self._length(name) for name in self.envs}
        total = sum(weights.values())
        expected = {name: groups * weight / total for name, weight in weights.items()}
        return rounded_counts(expected, random.Random(f"mixture {self.run_seed} {iteration}"))

    def _length(self, name: str) -> float:
        """Return the sampled tokens of a trajectory, relative to other environments'; 1 if shares
        are of trajectories, or if nothing is known of some environment."""
        known = [each.trajectories and each.tokens for each in self._running.values()]
        if self.config.shares_of == "trajectories" or not all(known):
            return 1.0
        running = self._running[name]
        return running.tokens / running.trajectories

    def group_seeds(self, iteration: int, collection: int, groups: int) -> list[GroupSeed]:
        """Return the group seeds of one collection, over all ranks, each with its environment.

        Which group id has which environment is drawn anew for each collection, so that optimizer
        batches and ranks, which are cut by group id, hold all of them. Every rank must call it.
        """
        names: list[str] = []
        chosen: dict[str, list[GroupSeed]] = {}
        for name, count in self.counts(iteration, groups).items():
            curriculum, size = self.curricula[name], 0
            if count:
                size = pool_size_of(curriculum, count)
                position = self._running[name].position
                pool = group_seeds(self.run_seed, position, size, collection)
                rng = random.Random(f"curriculum {name} {self.run_seed} {iteration} {collection}")
                progress = self._running[name].progress
                chosen[name] = choose_starts(
                    curriculum, self.envs[name], pool, count, progress, rng
                )
            self._taken[name] = size
            names += [name] * count
        random.Random(f"mixture {self.run_seed} {iteration} {collection}").shuffle(names)
        first_id = collection * groups
        queues = {name: iter(starts) for name, starts in chosen.items()}
        return [
            replace(next(queues[name]), group_id=first_id + place, env=name)
            for place, name in enumerate(names)
        ]

    def learn(self, played: Sequence[TrajectoryGroup]) -> None:
        """Take note of all that an iteration played, on all ranks; every rank must call it.

        Args:
            played: This rank's groups, those that dynamic sampling drops among them.
        """
        by_env = groups_by_env(played)
        for name, running in self._running.items():
            own = by_env.get(name, [])
            curriculum = self.curricula[name]
            parts = gather_objects((tally_of(curriculum, own), [_facts(group) for group in own]))
            tallies = sum_tallies(part for part, _ in parts)
            running.progress = learned(curriculum, running.progress, tallies)
            # In the order of group ids, so that sums do not depend on the number of ranks.
            facts = sorted(each for _, part in parts for each in part)
            running.add([fact for _, group in facts for fact in group])
            running.position += self._taken[name]

    def reward_scales(self) -> dict[str, float]:
        """Return the factors of the rewards that train, by environment."""
        if not self.config.normalize_rewards:
            return dict.fromkeys(self.envs, 1.0)
        return {name: 1.0 / running.std for name, running in self._running.items()}

    @property
    def chooses_starts(self) -> bool:
        """Whether the curriculum of an environment chooses among more starts than are played."""
        return any(each.by_start or pool_size_of(each, 1) > 1 for each in self.curricula.values())

    @property
    def running_success(self) -> dict[str, float]:
        """The success rate at each difficulty by which a curriculum chooses, such as
        ``sokoban/2-3``."""
        return {
            f"{name}/{difficulty}": tally.success
            for name, running in self._running.items()
            for difficulty, tally in running.progress.items()
            if not self.curricula[name].by_start
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the environments as plain data."""
        return {
            name: {
                "position": running.position,
                **saved_progress(self.curricula[name], running.progress),
                "sums": [running.trajectories, running.tokens, running.total, running.squares],
            }
            for name, running in self._running.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; environments that are new to the run begin at the beginning."""
        for name, saved in state.items():
            if name in self._running:
                progress = restored_progress(self.curricula[name], saved)
                self._running[name] = _Running(saved["position"], progress, *saved["sums"])


def mixture_of(
    envs: Mapping[str, TextEnv], config: MixtureConfig, curriculum: Curriculum, run_seed: int
) -> Mixture | None:
    """Return the mixture of a run; None with a single environment, whose name is ``""``.

    Raises:
        ValueError: for keys of a mixture without one, and for names that it does not have.
    """
    if "" not in envs:
        config.check_names(envs)
        return Mixture(envs, config, curriculum, run_seed)
    if config != MixtureConfig():
        raise ValueError(
            "data.mixture is set, but data.envs is empty: name the environments of the mixture "
            "there, or leave data.mixture out"
        )
    return None


def _facts(group: TrajectoryGroup) -> tuple[int, list[tuple[float, float]]]:
    """Return a group's id and its sound trajectories' tokens and returns."""
    sound = [each for each in group.trajectories if each.is_trainable]
    return group.group_id, [(float(each.num_sampled_tokens), each.total_reward) for each in sound]


def groups_by_env(groups: Iterable[TrajectoryGroup]) -> dict[str, list[TrajectoryGroup]]:
    """Return groups by the name of their environment in the mixture; ``""`` without one."""
    found: defaultdict[str, list[TrajectoryGroup]] = defaultdict(list)
    for group in groups:
        found[group.env].append(group)
    return dict(found)


def env_of_set(eval_set: str, names: Iterable[str]) -> str | None:
    """Return the environment of a mixture to which an evaluation set belongs by its name: the
    longest one that the name begins with; None if there is none."""
    return max((name for name in names if eval_set.startswith(name)), key=len, default=None)
