"""Evaluation sets: environments with fixed starts, which no run trains on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from ragen_pl.distributed.collectives import all_or_none, gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.eval_seeds import eval_seeds, overlap
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed

_EVALUATION = 1 << 40
"""Iteration number under which evaluations sample, so that their noise meets no training noise."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Size and sampling of evaluations.

    Args:
        size: Starts per evaluation set, distinct where the environment has that many.
        temperature: Of the sampling; the paper evaluates at 0.5, and 0 is greedy.
    """

    size: int = 256
    temperature: float = 0.5

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"evaluation.size is {self.size}; it must be at least 1")
        if self.temperature < 0:
            given = self.temperature
            raise ValueError(f"evaluation.temperature is {given}; it must be 0 (greedy) or more")


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """An environment and the starts at which policies are scored."""

    name: str
    env: TextEnv
    index: int
    """Place among the run's evaluation sets; part of the identity of its sampling noise."""
    seeds: tuple[int, ...]

    @classmethod
    def build(cls, name: str, env: TextEnv, index: int, size: int) -> Self:
        """Choose the starts; every rank must call it, and gets the same.

        Raises:
            ConfigError: on all ranks, when the environment gives none on any.
        """
        try:
            own = all_or_none(lambda: eval_seeds(env, size))
        except ValueError as error:
            raise ConfigError(f"data.eval_sets.{name}: {error}") from error
        # A reset that fails now and then may have passed over other seeds on other ranks.
        return cls(name, env, index, tuple(gather_objects(own)[0]))

    @property
    def group_seeds(self) -> list[GroupSeed]:
        """One group per start, in a fixed order."""
        return [GroupSeed(place, seed) for place, seed in enumerate(self.seeds)]

    def noise_iteration(self, temperature: float) -> int:
        """Return the iteration number that seeds the sampling noise at a temperature."""
        return _EVALUATION + self.index * 1000 + round(temperature * 100)

    def remarks(self, env: TextEnv, training_seeds: Iterable[int]) -> Iterator[str]:
        """Yield a line for everything that makes scores on this set mean less than they seem to.

        Args:
            env: The environment that is trained in.
            training_seeds: Seeds of training starts, to be compared.
        """
        seeds = list(training_seeds)
        if self.env.name != env.name:
            yield (
                f"data.eval_sets.{self.name} is {type(self.env).__name__}, but data.env is "
                f"{type(env).__name__}: it scores another task than is trained"
            )
        met = overlap(self.env, self.seeds, env, seeds)
        if met.shared:
            yield (
                f"data.eval_sets.{self.name}: {met.shared} of its {met.starts} starts are among "
                f"the run's first {len(seeds)} training starts: on these it measures what was "
                "learned, not what carries over to others"
            )
