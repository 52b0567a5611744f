"""Evaluation sets: environments with fixed starts that no run trains on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from ragen_pl.distributed.collectives import all_or_none, gather_objects
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.eval_seeds import EvalStart, eval_starts, fingerprint, overlap
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.curriculum.base import UNKNOWN, difficulty_of

_FIRST_NOISE_ITERATION = 1 << 40
"""Smallest iteration number that seeds the sampling noise of evaluations; larger than that of any
training iteration."""

_COMPARED_DIFFICULTIES = 64
"""Training starts whose difficulties are compared with those of a set with few starts."""
_PIN = re.compile(r"[1-9][0-9]*:[0-9a-f]{8,64}")


@dataclass(frozen=True)
class Budget:
    """Limits that a trajectory has at least; null leaves a limit as it is.

    Args:
        max_turns: Turns per trajectory.
        max_actions_per_turn: Actions in one response.
        max_response_tokens: Tokens of one response.
        max_context: Tokens of one context: of a whole trajectory, unless the memory cuts it.
    """

    max_turns: int | None = None
    max_actions_per_turn: int | None = None
    max_response_tokens: int | None = None
    max_context: int | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1, or null")

    def widen(self, rollout: RolloutConfig) -> RolloutConfig:
        """Return the limits of a rollout, with those that are smaller than these raised."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(rollout, **{n: max(v, getattr(rollout, n)) for n, v in given.items()})


@dataclass(frozen=True)
class EvaluationConfig:
    """Size, sampling and identity of evaluations.

    Args:
        size: Initial states per evaluation set, all distinct if the environment has that many. If
            not, some are played several times, and each distinct one counts once.
        temperature: Sampling temperature; the paper evaluates at 0.5, and 0 is greedy.
        samples: Trajectories per initial state that ``validate``, ``test`` and ``predict`` sample,
            for pass@k with k up to this number; ``fit`` plays each state once.
        greedy: Whether ``validate`` and ``test`` also play each state greedily, once.
        at_least: Limits that a trajectory has at least on an evaluation set, by the set's name,
            for sets that need more than ``data.rollout`` has, such as those of another
            environment. Configurations are merged by name.
        pins: Fingerprints of evaluation sets by their names, such as ``256:3f0c52d1a7b9``: the
            number of starts and the first digits of their hash, which ``run.py pins`` prints. A set
            whose first starts have another fingerprint is an error; null takes a pin away. A set
            with fewer starts than its pin is not checked. Configurations are merged by name.
    """

    size: int = 256
    temperature: float = 0.5
    samples: int = 4
    greedy: bool = True
    at_least: Mapping[str, Budget | None] = field(default_factory=dict)
    pins: Mapping[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"evaluation.size is {self.size}; it must be at least 1")
        if self.temperature < 0:
            given = self.temperature
            raise ValueError(f"evaluation.temperature is {given}; it must be 0 (greedy) or more")
        if self.samples < 1:
            raise ValueError(f"evaluation.samples is {self.samples}; it must be at least 1")
        for name, pin in self.pins.items():
            if pin is not None and not _PIN.fullmatch(pin):
                raise ValueError(
                    f"evaluation.pins.{name} is {pin}; it must be a number of starts, a colon and "
                    "8 or more digits of a hash, such as 256:3f0c52d1a7b9 (run.py pins prints them)"
                )

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse pins and limits of sets that do not exist.

        Args:
            names: Names of all sets, those that are left out by null among them.

        Raises:
            ValueError: when there is one.
        """
        known = list(names)
        given = [("pins", name) for name in self.pins]
        given += [("at_least", name) for name, limits in self.at_least.items() if limits]
        for key, name in given:
            if name not in known:
                raise ValueError(
                    f"evaluation.{key}.{name} is for no evaluation set; data.eval_sets has "
                    f"{', '.join(known)}"
                )

    def widen(self, eval_set: str, rollout: RolloutConfig) -> RolloutConfig:
        """Return the limits of a trajectory on an evaluation set, at least those of a rollout."""
        budget = self.at_least.get(eval_set)
        return rollout if budget is None else budget.widen(rollout)

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Temperatures at which ``validate`` and ``test`` play."""
        return (self.temperature, 0.0) if self.greedy and self.temperature else (self.temperature,)


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """An environment and the seeds of the initial states from which policies are evaluated."""

    name: str
    env: TextEnv
    index: int
    """Index among the run's evaluation sets; seeds the sampling noise together with the
    temperature."""
    seeds: tuple[int, ...]
    fingerprint: str
    """Number and hash of the initial states and of what the agent is told of them."""
    distinct: int
    """Number of distinct initial states."""

    @classmethod
    def build(cls, name: str, env: TextEnv, index: int, size: int, pin: str | None = None) -> Self:
        """Choose the initial states; every rank must call it, and gets the same ones.

        Raises:
            ConfigError: on all ranks, when the environment yields no initial states on one of them,
                or other ones than the pin says.
        """
        try:
            own = all_or_none(lambda: eval_starts(env, size))
        except ValueError as error:
            raise ConfigError(f"data.eval_sets.{name}: {error}") from error
        # A reset that fails at random may have skipped different seeds on different ranks.
        starts = gather_objects(own)[0]
        if pin is not None:
            _check_pin(name, starts, pin)
        seeds = tuple(start.seed for start in starts)
        distinct = sum(not start.is_repeat for start in starts)
        return cls(name, env, index, seeds, fingerprint(starts), distinct)

    @property
    def group_seeds(self) -> list[GroupSeed]:
        """Group seeds, one per initial state, in a fixed order."""
        return [GroupSeed(index, seed) for index, seed in enumerate(self.seeds)]

    def noise_iteration(self, temperature: float) -> int:
        """Return the iteration number that seeds the sampling noise at a temperature."""
        return _FIRST_NOISE_ITERATION + self.index * 1000 + round(temperature * 100)

    def repeats(self) -> str | None:
        """Return a line that says that initial states repeat; None if they do not."""
        if self.distinct == len(self.seeds):
            return None
        return (
            f"data.eval_sets.{self.name}: {self.distinct} distinct "
            f"start{'s' if self.distinct > 1 else ''}, fewer than "
            f"data.evaluation.size {len(self.seeds)}: starts are played several times, and "
            "success is the mean over the distinct ones"
        )

    def _absent_difficulties(self, env: TextEnv, training_seeds: Sequence[int]) -> Iterator[str]:
        """Yield a line if training starts have difficulties that none of the set's starts has,
        though it has others of theirs."""
        if self.env.name != env.name:
            return
        training, own = CheckedEnv(env), CheckedEnv(self.env)
        trained = {difficulty_of(training, seed) for seed in training_seeds} - {UNKNOWN}
        absent = set(trained)
        for seed in self.seeds:
            if absent:
                absent.discard(difficulty_of(own, seed))
        if 0 < len(absent) < len(trained):
            yield (
                f"data.eval_sets.{self.name}: none of its {self.distinct} distinct starts has the "
                f"difficulty {' or '.join(map(repr, sorted(absent)))} of training starts, so "
                "success on it says nothing about these: give it and the training environment all "
                "starts (split: all, where there is one), or hold out more"
            )

    def warnings(self, env: TextEnv, key: str, training_seeds: Iterable[int]) -> Iterator[str]:
        """Yield a line per reason why results on this set do not measure generalization, and one if
        its initial states repeat.

        Args:
            env: The training environment.
            key: Its key in the configuration.
            training_seeds: Seeds of training to compare with this set's.
        """
        seeds = list(training_seeds)
        if self.env.name != env.name:
            yield (
                f"data.eval_sets.{self.name} is {type(self.env).__name__}, but {key} is "
                f"{type(env).__name__}: it evaluates a different task from the one trained on"
            )
        if repeats := self.repeats():
            yield repeats
            yield from self._absent_difficulties(env, seeds[:_COMPARED_DIFFICULTIES])
        found = overlap(self.env, self.seeds, env, seeds)
        if found.shared:
            yield (
                f"data.eval_sets.{self.name}: {found.shared} of its {found.starts} starts are "
                f"among the run's first {len(seeds)} training starts: success on these measures "
                "training, not generalization"
            )


def _check_pin(name: str, starts: Sequence[EvalStart], pin: str) -> None:
    """Compare an evaluation set's first starts with its pin, unless it has fewer.

    Raises:
        ConfigError: when they differ.
    """
    count = int(pin.partition(":")[0])
    if len(starts) < count:
        return
    found = fingerprint(starts[:count])
    shorter = min(len(found), len(pin))
    if found[:shorter] != pin[:shorter]:
        raise ConfigError(
            f"data.eval_sets.{name} has changed: its first {count} starts have the fingerprint "
            f"{found}, but data.evaluation.pins.{name} is {pin}\n"
            f"  if you changed the set's keys, set data.evaluation.pins.{name} to its new "
            "fingerprint, or to null\n"
            "  if not, this version builds other starts: results on them cannot be compared with "
            "earlier ones"
        )
