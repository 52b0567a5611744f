"""Evaluation sets: environments with fixed starts that no run trains on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from ragen_pl.distributed.collectives import all_or_none, gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.eval_seeds import eval_seeds, overlap
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed

_FIRST_NOISE_ITERATION = 1 << 40
"""Smallest iteration number that seeds the sampling noise of evaluations; larger than that of any
training iteration."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Size and sampling of evaluations.

    Args:
        size: Initial states per evaluation set, all distinct if the environment has that many.
        temperature: Sampling temperature; the paper evaluates at 0.5, and 0 is greedy.
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
    """An environment and the seeds of the initial states from which policies are evaluated."""

    name: str
    env: TextEnv
    index: int
    """Index among the run's evaluation sets; seeds the sampling noise together with the
    temperature."""
    seeds: tuple[int, ...]

    @classmethod
    def build(cls, name: str, env: TextEnv, index: int, size: int) -> Self:
        """Choose the initial states; every rank must call it, and gets the same ones.

        Raises:
            ConfigError: on all ranks, when the environment yields no initial states on one of them.
        """
        try:
            own = all_or_none(lambda: eval_seeds(env, size))
        except ValueError as error:
            raise ConfigError(f"data.eval_sets.{name}: {error}") from error
        # A reset that fails at random may have skipped different seeds on different ranks.
        return cls(name, env, index, tuple(gather_objects(own)[0]))

    @property
    def group_seeds(self) -> list[GroupSeed]:
        """Group seeds, one per initial state, in a fixed order."""
        return [GroupSeed(index, seed) for index, seed in enumerate(self.seeds)]

    def noise_iteration(self, temperature: float) -> int:
        """Return the iteration number that seeds the sampling noise at a temperature."""
        return _FIRST_NOISE_ITERATION + self.index * 1000 + round(temperature * 100)

    def warnings(self, env: TextEnv, training_seeds: Iterable[int]) -> Iterator[str]:
        """Yield a line per reason why results on this set do not measure generalization.

        Args:
            env: The training environment.
            training_seeds: Seeds of training to compare with this set's.
        """
        seeds = list(training_seeds)
        if self.env.name != env.name:
            yield (
                f"data.eval_sets.{self.name} is {type(self.env).__name__}, but data.env is "
                f"{type(env).__name__}: it evaluates a different task from the one trained on"
            )
        found = overlap(self.env, self.seeds, env, seeds)
        if found.shared:
            yield (
                f"data.eval_sets.{self.name}: {found.shared} of its {found.starts} starts are "
                f"among the run's first {len(seeds)} training starts: success on these measures "
                "training, not generalization"
            )
