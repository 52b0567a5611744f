"""The base class of teachers, what they are asked for and what they give."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.packing import token_rows
from ragen_pl.types import TokenRow, Trajectory


def tell_nobody(_: object) -> None:
    """Take note of nothing."""


def check_share(key: str, share: float) -> None:
    """Refuse a share of the turns outside of [0, 1).

    Raises:
        ValueError: with the key and the value.
    """
    if not 0 <= share < 1:
        raise ValueError(f"warm_start.{key} is {share}; it is a share in [0, 1)")


@dataclass(frozen=True, slots=True)
class TeachingTask:
    """What a teacher is asked for: demonstrations in one environment."""

    env: TextEnv
    """The training environment; a teacher plays copies of it."""
    chat: Chat
    """The agent's chat protocol there."""
    rollout: RolloutConfig
    """The limits of a trajectory."""
    demonstrations: int
    """How many are wanted; a teacher that has fewer gives those."""
    difficulties: tuple[str, ...]
    """Difficulties to demonstrate, by the environment's names; empty means all."""
    first_seed: int
    """The first of the demonstrations' seeds. Those from it on are for initial states, and only
    demonstrations have them; all randomness of a teacher follows from it."""
    report: Callable[[str], None] = tell_nobody
    """Function that shows a person what a teacher is doing, if that takes long."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One demonstration as the policy imitates it."""

    rows: tuple[TokenRow, ...]
    """Its training sequences: one, unless the memory cut the context."""
    difficulty: str = ""
    """The environment's name for it; empty if there is none."""

    @classmethod
    def of(
        cls, trajectory: Trajectory, imitated: Sequence[bool], given: Sequence[int] = ()
    ) -> Self:
        """Return a trajectory's responses as a lesson.

        Args:
            trajectory: The demonstration.
            imitated: Whether each turn's response is to be imitated. Summaries always are.
            given: As in ``token_rows``.
        """
        return cls(token_rows(trajectory.turns, imitated, given), trajectory.difficulty)


@dataclass(frozen=True, slots=True)
class LessonQuestion:
    """A test of what is taught, with one right answer."""

    prefix_ids: tuple[int, ...]
    """All that the policy sees, up to the answer."""
    answer_ids: tuple[int, ...]
    """The tokens that it has to continue with, at least one."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """A teacher's demonstrations in one environment, at least one."""

    lessons: tuple[Lesson, ...]
    told: str
    """What a person should know of them, printed at the start of the run; later lines are
    indented."""
    questions: tuple[LessonQuestion, ...] = ()
    """Tests that the policy takes before each iteration of the warm start and after the last."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the teacher measured, to be logged as ``teacher/…``."""

    @property
    def digest(self) -> str:
        """A fingerprint of the tokens and masks, the same in every process."""
        digest = hashlib.blake2b(digest_size=8)
        for lesson in self.lessons:
            for row in lesson.rows:
                digest.update(array("q", row.token_ids).tobytes() + bytes(row.loss_mask) + b"|")
            digest.update(b"||")
        return digest.hexdigest()


class Teacher(ABC):
    """A source of demonstrations.

    The constructor's arguments are the configuration and never change. ``teach`` is called once in
    a command, before the first step, for each environment of a mixture that the teacher accepts.
    Equal tasks must give equal lessons, or a resumed run would imitate others.
    """

    teaches_on_first_rank: ClassVar[bool] = False
    """Whether the first rank teaches alone and the others are given its lessons, as when they take
    long to make. Otherwise every rank makes them, and all take the first rank's should they
    differ."""
    lessons_are_saved: ClassVar[bool] = False
    """Whether checkpoints hold the lessons until the warm start is over, so that a resumed run does
    not make them again: for lessons that cost much, or depend on files that may change."""

    def check(self, env: TextEnv, *, think: bool) -> None:  # noqa: B027 (optional)
        """Refuse an environment in which nothing can be taught, before a run starts.

        Args:
            env: A training environment.
            think: Whether the agent thinks before it answers.

        Raises:
            ValueError: with the class and the reason; the caller adds the key.
        """

    def vocabulary(self) -> Iterable[str]:
        """Yield the pieces of text that the lessons add to a dialogue."""
        return ()

    @abstractmethod
    def teach(self, task: TeachingTask) -> Lessons:
        """Return the demonstrations in one environment.

        Raises:
            ConfigError: if there are none, or a response is longer than the policy's may be; the
                message says what to do.
        """
