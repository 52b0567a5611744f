"""The warm start: what a teacher demonstrates, as a fixed set and as batches drawn from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ragen_pl.distributed.batch_sharding import balance_by_tokens
from ragen_pl.distributed.collectives import all_or_none, gather_objects, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.packing import token_batch
from ragen_pl.rollout.spelled_words import told_of_spelled_words
from ragen_pl.rollout.teachers import (
    Lesson,
    LessonQuestion,
    Lessons,
    Solver,
    Teacher,
    TeachingTask,
    tell_nobody,
)
from ragen_pl.rollout.teachers.base import check_share
from ragen_pl.types import Demonstration, DemonstrationSet, EpisodeId, Generate, Request, Sampling

MAX_DEMONSTRATIONS = 20_000_000
"""Limit that keeps demonstrations off the seeds of evaluation sets, even if a hundred seeds are
skipped for each."""
_READ = 20
"""Demonstrations in which words without tokens are looked for."""
_ASKED = 1 << 41
"""Iteration number of questions, beyond those of rollouts and evaluations."""


@dataclass(frozen=True)
class WarmStart:
    """The imitation of a teacher that precedes RL; ``iterations`` 0 leaves it out.

    Args:
        iterations: Iterations of imitation, each ``updates_per_iteration`` optimizer steps.
        updates_per_iteration: Optimizer steps in one iteration.
        batch_size: Demonstrations per optimizer step.
        demonstrations: Size of the fixed set, one demonstration per initial state (the paper had
            1,000).
        random_turns: The teacher's key of that name, in short; null leaves it to the teacher.
        imitate_random: The teacher's key of that name, in short; null leaves it to the teacher.
        difficulties: Difficulties to demonstrate, by the environment's names, which may be numbers;
            empty means all.
        teacher: Who demonstrates; by default the environment's own expert.
    """

    iterations: int = 0
    updates_per_iteration: int = 20
    batch_size: int = 32
    demonstrations: int = 1000
    random_turns: float | None = None
    imitate_random: bool | None = None
    difficulties: tuple[str | int | float, ...] = ()
    teacher: Teacher = Solver()  # noqa: RUF009  frozen, so sharing it is safe

    @property
    def difficulty_names(self) -> tuple[str, ...]:
        """The difficulties as texts, as trajectories have them."""
        return tuple(map(str, self.difficulties))

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise ValueError(f"warm_start.iterations is {self.iterations}; use 0 for none")
        for key in ("updates_per_iteration", "batch_size", "demonstrations"):
            if getattr(self, key) < 1:
                raise ValueError(f"warm_start.{key} is {getattr(self, key)}; it must be at least 1")
        if self.demonstrations > MAX_DEMONSTRATIONS:
            raise ValueError(
                f"warm_start.demonstrations is {self.demonstrations}; it may be at most "
                f"{MAX_DEMONSTRATIONS}: further seeds belong to evaluation sets"
            )
        if self.random_turns is not None:
            check_share("random_turns", self.random_turns)
        for key in self._short_keys:
            teacher = self.teacher
            if not is_dataclass(teacher) or key not in {each.name for each in fields(teacher)}:
                raise ValueError(
                    f"warm_start.{key} is {getattr(self, key)}, but warm_start.teacher is "
                    f"{type(teacher).__name__}, which has no such key: set warm_start.{key} to null"
                )

    @property
    def _short_keys(self) -> dict[str, Any]:
        """The teacher's keys that are given here."""
        keys = ("random_turns", "imitate_random")
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    @property
    def chosen_teacher(self) -> Teacher:
        """The teacher, with the keys that are given here."""
        teacher, keys = self.teacher, self._short_keys
        if not keys:
            return teacher
        assert is_dataclass(teacher), "checked above"
        return replace(teacher, **keys)


def demonstrate(
    env: TextEnv,
    chat: Chat,
    rollout: RolloutConfig,
    config: WarmStart,
    *,
    first_seed: int,
    name: str = "",
    report: Callable[[str], None] = tell_nobody,
    record: Callable[[Mapping[str, float]], None] = tell_nobody,
) -> Lessons:
    """Have the teacher demonstrate and print what it tells; every rank must call it and gets the
    same lessons.

    Args:
        env: The training environment.
        chat: The agent's chat protocol there.
        rollout: The limits of a trajectory.
        config: The warm start, with its teacher.
        first_seed: The first of the demonstrations' seeds.
        name: The environment's name in a mixture.
        report: Function that shows what the teacher is doing.
        record: Function that takes the teacher's metrics, the same ones on every rank.

    Raises:
        ConfigError: the teacher's, on all ranks.
    """
    teacher = config.chosen_teacher
    wanted, difficulties = config.demonstrations, config.difficulty_names
    task = TeachingTask(env, chat, rollout, wanted, difficulties, first_seed, report)
    alone = teacher.teaches_on_first_rank
    own = all_or_none(lambda: teacher.teach(task) if rank() == 0 or not alone else None)
    lessons = agreed_lessons(own)
    if rank() == 0:
        print(describe(lessons, name))
        rows = (row.token_ids for lesson in lessons.lessons[:_READ] for row in lesson.rows)
        if told := told_of_spelled_words(rows, chat.tokenizer):
            print(f"  warning: {told}; contexts become shorter, and learning faster")
    record({"demonstrations": len(lessons.lessons), **lessons.metrics})
    return lessons


def agreed_lessons(own: Lessons | None) -> Lessons:
    """Return the first rank's lessons if those of the ranks differ; every rank must call it.

    An environment that fails now and then, such as one behind a server, may fail at other seeds on
    each rank.
    """
    digests = gather_objects(None if own is None else own.digest)
    if own is not None and len(set(digests)) == 1:
        return own
    return next(each for each in gather_objects(own if rank() == 0 else None) if each is not None)


def describe(lessons: Lessons, name: str = "") -> str:
    """Return the number of demonstrations, of which environment in a mixture, their difficulties
    and what the teacher tells."""
    difficulties = Counter(lesson.difficulty for lesson in lessons.lessons if lesson.difficulty)
    shares = ", ".join(f"{name}: {count}" for name, count in sorted(difficulties.items()))
    return (
        "warm start: "
        + (f"{name}: " if name else "")
        + f"{len(lessons.lessons)} demonstrations"
        + (f" (by difficulty {shares})" if shares else "")
        + f"; {lessons.told}"
    )


def right_answers(
    questions: Sequence[LessonQuestion], generate: Generate, max_context: int
) -> float:
    """Return the share of the questions that the policy answers greedily with exactly the right
    tokens; every rank must call it.

    Args:
        questions: The same ones on every rank; at least one.
        generate: The sampler.
        max_context: Maximum tokens of a row, which no question with its right answer exceeds.
    """
    own = questions[rank() :: world_size()]
    right = 0
    for limit, numbers in _by_limit(own, max_context).items():
        requests = [
            Request(own[number].prefix_ids, EpisodeId(_ASKED, number, 0), 0) for number in numbers
        ]
        for number, completion in zip(
            numbers, generate(requests, Sampling(0.0, limit)), strict=True
        ):
            answer = own[number].answer_ids
            right += completion.token_ids[: len(answer)] == answer
    return sum(gather_objects(right)) / len(questions)


def _by_limit(questions: Sequence[LessonQuestion], max_context: int) -> dict[int, list[int]]:
    """Divide questions, by their numbers, by how many tokens to sample: as many as the longest
    answer has, but where the context has no room for so many, as the question's own."""
    longest = max((len(question.answer_ids) for question in questions), default=0)
    divided = defaultdict[int, list[int]](list)
    for number, question in enumerate(questions):
        has_room = len(question.prefix_ids) + longest <= max_context
        divided[longest if has_room else len(question.answer_ids)].append(number)
    return divided


def packed(lessons: Sequence[Lesson]) -> DemonstrationSet:
    """Return the training sequences of lessons as one set."""
    numbers = torch.tensor([number for number, lesson in enumerate(lessons) for _ in lesson.rows])
    tokens = token_batch([row for lesson in lessons for row in lesson.rows])
    return DemonstrationSet.of(tokens, demonstration_ids=numbers)


def demonstration_batches(
    demonstrations: DemonstrationSet,
    config: WarmStart,
    *,
    iteration: int,
    seed: int,
    right_answers: float | None = None,
) -> Iterator[Demonstration]:
    """Yield this rank's share of one iteration's batches; each pass over the fixed set is shuffled
    anew.

    Args:
        demonstrations: The fixed set.
        config: Size and number of the batches.
        iteration: The iteration of the warm start, from 0.
        seed: Seed of the order.
        right_answers: Share of the teacher's questions that were answered right before it.
    """
    ids = torch.unique(demonstrations.demonstration_ids)
    size = len(ids)
    first = iteration * config.updates_per_iteration * config.batch_size
    total = config.iterations * config.updates_per_iteration
    for update in range(config.updates_per_iteration):
        wanted = range(first + update * config.batch_size, first + (update + 1) * config.batch_size)
        chosen = torch.tensor([_shuffled(at, size, seed) for at in wanted])
        rows = torch.cat(
            [torch.nonzero(demonstrations.demonstration_ids == i)[:, 0] for i in ids[chosen]]
        )
        tokens = demonstrations.lengths[rows]
        rows = rows[balance_by_tokens(tokens, world_size()) == rank()]
        progress = (iteration * config.updates_per_iteration + update) / total
        own = demonstrations.rows(rows)
        yield Demonstration.of(own, progress=progress, right_answers=right_answers)


def _shuffled(at: int, size: int, seed: int) -> int:
    """Return the demonstration at index ``at`` of an endless sequence of shuffled passes."""
    return int(_order(at // size, size, seed)[at % size])


@lru_cache(maxsize=1)
def _order(number: int, size: int, seed: int) -> torch.Tensor:
    """Return the order of the demonstrations in one pass."""
    generator = torch.Generator().manual_seed(seed * 100_003 + number)
    return torch.randperm(size, generator=generator)
