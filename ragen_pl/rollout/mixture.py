"""Mixtures of environments: how many groups each gets, and from which starts.

Every environment of a mixture has a seed stream and a curriculum's progress of its own, so that it
meets the starts that it would meet in a run alone. All choices are pure functions of the run's seed
and of a saved state, and equal on every rank.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ragen_pl.distributed.collectives import gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig, TrajectoryLimits
from ragen_pl.rollout.curriculum import Curriculum
from ragen_pl.rollout.env_starts import EnvStarts
from ragen_pl.rollout.shares import rounded_counts
from ragen_pl.rollout.start_stream import StartStream
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
        """Refuse shares, limits and curricula of environments that the mixture does not have, and
        all of them without a mixture, where the only environment has the name ``""``.

        Raises:
            ValueError: naming the key and the environments.
        """
        known = list(names)
        if "" in known and self != MixtureConfig():
            raise ValueError(
                "data.mixture is set, but data.envs is empty: name the environments of the mixture "
                "there, or leave data.mixture out"
            )
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
    """What is known of an environment from the iterations so far, beside its curriculum's
    progress."""

    position: int = 0
    """Position in its seed stream at which the next iteration begins."""
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


class Mixture(StartStream):
    """The environments of a run, their shares of a collection, and where each of them is.

    Args:
        envs: The environments by name, at least two.
        config: Shares, and what they are of.
        curriculum: The curriculum of environments that have none of their own.
        groups: Groups of one collection, over all ranks.
        run_seed: Seed of the run.

    Raises:
        ValueError: when a curriculum has nothing to choose between.
    """

    def __init__(
        self,
        envs: Mapping[str, TextEnv],
        config: MixtureConfig,
        curriculum: Curriculum,
        *,
        groups: int,
        run_seed: int,
    ) -> None:
        self.config, self.groups, self.run_seed = config, groups, run_seed
        self._starts = {
            name: EnvStarts(envs, name, config.curricula.get(name) or curriculum, run_seed)
            for name in envs
        }
        self._running = {name: _Running() for name in envs}
        self._taken = dict.fromkeys(envs, 0)
        """Seeds that the current iteration takes from each stream."""

    def counts(self, iteration: int) -> dict[str, int]:
        """Return the number of groups of each environment in every collection of an iteration.

        Rounding is systematic and drawn anew: each environment has its share in expectation.
        """
        weights = {name: self.config.share(name) / self._length(name) for name in self._starts}
        total = sum(weights.values())
        expected = {name: self.groups * weight / total for name, weight in weights.items()}
        return rounded_counts(expected, random.Random(f"mixture {self.run_seed} {iteration}"))

    def _length(self, name: str) -> float:
        """Return the sampled tokens of a trajectory, relative to other environments'; 1 if shares
        are of trajectories, or if nothing is known of some environment."""
        known = [each.trajectories and each.tokens for each in self._running.values()]
        if self.config.shares_of == "trajectories" or not all(known):
            return 1.0
        running = self._running[name]
        return running.tokens / running.trajectories

    def group_seeds(self, iteration: int, collection: int) -> list[GroupSeed]:
        """Return the group seeds of one collection, over all ranks, each with its environment.

        Which group id has which environment is drawn anew for each collection, so that optimizer
        batches and ranks, which are cut by group id, hold all of them. Every rank must call it.
        """
        names: list[str] = []
        chosen: dict[str, list[GroupSeed]] = {}
        for name, count in self.counts(iteration).items():
            starts, position = self._starts[name], self._running[name].position
            self._taken[name] = starts.pool_size(count) if count else 0
            if count:
                chosen[name] = starts.choose(
                    count, position=position, iteration=iteration, collection=collection
                )
            names += [name] * count
        random.Random(f"mixture {self.run_seed} {iteration} {collection}").shuffle(names)
        first_id = collection * self.groups
        queues = {name: iter(starts) for name, starts in chosen.items()}
        return [
            replace(next(queues[name]), group_id=first_id + place, env=name)
            for place, name in enumerate(names)
        ]

    def learn(self, played: Sequence[TrajectoryGroup]) -> None:
        by_env = groups_by_env(played)
        for name, running in self._running.items():
            own, starts = by_env.get(name, []), self._starts[name]
            parts = gather_objects((starts.tally(own), [_facts(group) for group in own]))
            starts.learn(tallies for tallies, _ in parts)
            # In the order of group ids, so that sums do not depend on the number of ranks.
            facts = sorted(each for _, part in parts for each in part)
            running.add([fact for _, group in facts for fact in group])
            running.position += self._taken[name]

    @property
    def reward_scales(self) -> dict[str, float]:
        """The factors of the rewards that train, by environment."""
        if not self.config.normalize_rewards:
            return dict.fromkeys(self._running, 1.0)
        return {name: 1.0 / running.std for name, running in self._running.items()}

    @property
    def chooses_starts(self) -> bool:
        starts = self._starts.values()
        return any(each.curriculum.by_start or each.pool_size(1) > 1 for each in starts)

    @property
    def running_success(self) -> dict[str, float]:
        return {
            f"{name}/{difficulty}": success
            for name, starts in self._starts.items()
            for difficulty, success in starts.running_success.items()
        }

    def state_dict(self, iteration: int) -> dict[str, Any]:
        """Return what is known of the environments as plain data."""
        known = {
            name: {
                "position": running.position,
                **self._starts[name].state_dict(),
                "sums": [running.trajectories, running.tokens, running.total, running.squares],
            }
            for name, running in self._running.items()
        }
        return {"mixture": known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; environments that are new to the run begin at the beginning."""
        for name, saved in state.get("mixture", {}).items():
            if name in self._running:
                self._starts[name].load_state_dict(saved)
                self._running[name] = _Running(saved["position"], *saved["sums"])


def check_difficulties(difficulties: Iterable[str], envs: Collection[str]) -> None:
    """Refuse difficulties of a warm start without the name of an environment before them.

    Raises:
        ValueError: for such as ``2-3`` in place of ``sokoban/2-3``.
    """
    for each in difficulties:
        if each.partition("/")[0] not in envs:
            raise ValueError(
                f"data.warm_start.difficulties has {each!r}; in a mixture a difficulty begins "
                f"with an environment and a slash, such as {next(iter(envs))}/{each}"
            )


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
