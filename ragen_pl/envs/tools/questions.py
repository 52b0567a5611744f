"""Questions with known answers, to be answered with tools; ``ToolQuestions`` takes yours."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from ragen_pl.envs.base import NoExpertError, one_of
from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.splits import Split, enter_split
from ragen_pl.envs.tools.calls import CallForm
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.envs.tools.scoring import exact_match, f1_score
from ragen_pl.envs.tools.toolbox import Toolbox

Reward = Literal["exact", "f1"]
_LEAST_F1 = 0.3
"""Least F1 that earns anything (RAGEN-2)."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answers."""

    text: str
    answers: tuple[str, ...]
    difficulty: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool and text argument of the calls that lead to the answer, as far as they are known."""


def reward_of(answer: str, golds: Sequence[str], kind: Reward) -> float:
    """Return the reward of an answer: 1 for an exact match; otherwise, if ``kind`` is ``f1``, the
    F1 if it is 0.3 or more (RAGEN-2); else 0."""
    if exact_match(answer, golds):
        return 1.0
    score = f1_score(answer, golds) if kind == "f1" else 0.0
    return score if score >= _LEAST_F1 else 0.0


class QuestionEnv(ToolEnv):
    """A question that ``finish`` answers; other tools find out what is needed.

    Args:
        tools: Tools beside those of the environment.
        reward: Reward of an answer that is only partly right: its F1 from 0.3 on, or none.
        split: ``train`` or ``eval`` for disjoint questions; ``all`` for every one.
        calls: Form of a call in the prompt: JSON, or ``name[text]`` as in RAGEN-2. Both are read.
        repeat_question: Whether every observation has the question.
        max_actions: Maximum calls of an episode, the answer included.
    """

    def __init__(
        self,
        tools: Sequence[Toolbox] = (),
        reward: Reward = "f1",
        split: Split = "train",
        calls: CallForm = "json",
        repeat_question: bool = True,
        max_actions: int = 10,
    ) -> None:
        if max_actions < 1:
            raise ValueError(f"max_actions: {max_actions} is not positive")
        self.toolboxes, self.max_actions = tuple(tools), max_actions
        self.reward: Reward = one_of("reward", reward, Reward)
        self.split: Split = one_of("split", split, Split)
        self.calls: CallForm = one_of("calls", calls, CallForm)
        self.repeats_task = repeat_question
        self._start = 0

    @abstractmethod
    def _question_of(self, seed: int) -> Question:
        """Return the question that a seed decides."""

    @property
    def _question(self) -> Question:
        return self._question_of(self._start)

    @property
    def task(self) -> str:
        """The question."""
        return f"Question: {self._question.text}"

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        """Ask the question that the seed decides."""
        enter_split(seed, self.split, self._ask)
        info: dict[str, Any] = {"difficulty": self._question.difficulty}
        if self._question.calls:
            info["optimal_length"] = len(self._question.calls) + 1
        return info

    def _ask(self, seed: int) -> str:
        self._start = seed
        return self._split_key(self._question)

    def _split_key(self, question: Question) -> str:
        """Return what no two splits have in common."""
        return question.text

    def finish(self, answer: str) -> str:
        """Give the answer and end.

        Args:
            answer: The answer, as short as possible.
        """
        golds = self._question.answers
        right = exact_match(answer, golds)
        self.end(reward_of(answer, golds, self.reward), success=right)
        return "The answer is right." if right else "The answer is not right."

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the next of the known calls, or the answer after them.

        Raises:
            NoExpertError: if no calls of the question are known.
            ValueError: if one names no such tool.
        """
        question = self._question
        if not question.calls:
            raise NoExpertError(
                "a question comes without the calls that lead to its answer: without an expert, "
                "set data.warm_start.iterations to 0"
            )
        for name, text in question.calls:
            schema = self.schemas.get(name)
            if schema is None or schema.only_text is None:
                raise ValueError(
                    f"a question's calls name {name!r}, which is no tool with a single text as its "
                    f"argument; the tools are {', '.join(self.schemas)}"
                )
            call = self.written(name, **{schema.only_text: text})
            if call not in self.moves:
                return f"I need {text}.", (call,)
        return "I know it.", (self.written("finish", answer=question.answers[0]),)

    def vocabulary(self) -> Iterator[str]:
        """List what is around questions, calls and verdicts."""
        yield from super().vocabulary()
        yield from ("Question: ", "I need ", "I know it.", "\n1. ", "\n2. ", "\n3. ", "Error: ")
        yield from ("The answer is right.", "The answer is not right.", "Nothing found.")


class ToolQuestions(QuestionEnv):
    """Questions of your own, answered with tools that the configuration names.

    A file has JSON lines: ``question``, ``answer`` (a text or a list), and if you like
    ``difficulty`` and, for an expert, ``calls``: a list of pairs of a tool and its text.

    Args:
        questions: File of JSON lines.
        instruction: The task in words.
    """

    name = "tool_questions"

    def __init__(
        self,
        questions: str,
        tools: Sequence[Toolbox] = (),
        instruction: str = "Answer the question. Use the tools, then finish.",
        reward: Reward = "f1",
        split: Split = "train",
        calls: CallForm = "json",
        repeat_question: bool = True,
        max_actions: int = 10,
    ) -> None:
        super().__init__(tools, reward, split, calls, repeat_question, max_actions)
        self._path, self._instruction = questions, instruction
        _questions(questions)

    @property
    def instruction(self) -> str:
        """The task in words."""
        return self._instruction

    @property
    def has_expert(self) -> bool:
        """Whether any question comes with the calls that lead to its answer."""
        return any(question.calls for question in _questions(self._path))

    def _question_of(self, seed: int) -> Question:
        known = _questions(self._path)
        return known[random.Random(f"question {seed}").randrange(len(known))]


@lru_cache(maxsize=16)
def _questions(path: str) -> tuple[Question, ...]:
    return tuple(map(_question, read_rows(path, "questions")))


def _question(row: DataRow) -> Question:
    calls = row.get("calls") or []
    if not isinstance(calls, list) or not all(
        isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in calls
    ):
        raise row.unfit("calls", "a list of pairs of a tool and its text")
    pairs = tuple((tool, str(argument)) for tool, argument in calls)
    return Question(text_of(row), answers_of(row), row.label("difficulty"), pairs)


def text_of(row: DataRow) -> str:
    """Return the question of a row.

    Raises:
        ConfigError: if it has none.
    """
    text = row.get("question")
    if not isinstance(text, str) or not text.strip():
        raise row.unfit("question", "a text")
    return text


def answers_of(row: DataRow) -> tuple[str, ...]:
    """Return the right answers of a question, the one to be given first.

    Raises:
        ConfigError: if there are none, or they are no texts or numbers.
    """
    name = "answer" if row.get("answer") is not None else "golden_answers"
    name = name if row.get(name) is not None else "answer"
    given = row.get(name)
    golds = given if isinstance(given, list) else [given]
    if not all(isinstance(gold, str | int | float) for gold in golds):
        raise row.unfit(name, "a text, a number, or a list of these")
    answers = tuple(str(gold) for gold in golds if str(gold).strip())
    if not answers:
        raise row.unfit(name, "a text, a number, or a list of these")
    return answers
