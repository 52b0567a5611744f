"""Files of questions: MetaMathQA's, GSM8K's, and plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.math_qa.answers import WorkedSolution, solution_in
from ragen_pl.envs.pieces import frequent_pieces
from ragen_pl.envs.splits import Split, split_of

_LONGEST_QUESTION = 20_000
_SAMPLED = 100
"""Questions that the vocabulary is taken from."""


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """A file of questions, which every process reads once, whatever the copies of this.

    A record is an object with ``query`` and ``response`` (MetaMathQA) or with ``question`` and
    ``answer`` (GSM8K, or an answer alone); ``type`` is its difficulty.
    """

    path: str
    skip_unanswered: bool = False
    """Whether records without a final answer are left out instead of refused."""

    def questions(self) -> Sequence[MathQuestion]:
        """Return all questions.

        Raises:
            ValueError: if the file cannot be read, has no questions, or a record is none.
        """
        return _questions(self)

    def numbers(self, split: Split) -> Sequence[int]:
        """Return which questions are of a split.

        Raises:
            ValueError: if there are none, or the file is refused.
        """
        return _numbers(self, split)

    def pieces(self) -> Sequence[str]:
        """Return frequent lines and words, which all splits share."""
        return _pieces(self)


@dataclass(frozen=True, slots=True)
class MathQuestion:
    """A question and its answer."""

    text: str
    answer: str
    reasoning: str
    """The solution in words, without the answer; empty if it is not known."""
    difficulty: str
    split: Split
    """The split of the question that this one is a rewrite of, or of itself."""


@lru_cache(maxsize=8)
def _questions(file: QuestionFile) -> tuple[MathQuestion, ...]:
    found = []
    for record in read_rows(file.path, "questions"):
        text = _text_of(record)
        solution = _solution_of(record)
        if solution is None and not file.skip_unanswered:
            reason = (
                'a "response" must end in "The answer is: X", an "answer" in "#### X", or be the '
                "answer alone"
                if {"answer", "response"} & set(record.content)
                else f'no "answer" or "response" is among its keys ({", ".join(record.content)})'
            )
            raise ValueError(
                f"{record.place}, has no final answer: {reason}; skip_unanswered: true leaves such "
                "records out"
            )
        if solution is not None:
            kind, origin = record.get("type"), record.get("original_question")
            found.append(
                MathQuestion(
                    text,
                    answer=solution.answer,
                    reasoning=solution.reasoning,
                    difficulty="" if kind is None else str(kind),
                    split=_split_of(origin if isinstance(origin, str) else text),
                )
            )
    if not found:
        raise ValueError(
            f"questions: {file.path} has no questions with answers: its rows need query and "
            "response, or question and answer"
        )
    return tuple(found)


def _text_of(record: DataRow) -> str:
    text = record.get("query", "question")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f'{record.place}, has no question: it needs a text as "query" or "question"'
        )
    if len(text) > _LONGEST_QUESTION:
        raise ValueError(
            f"{record.place}, has a question of {len(text)} characters: at most "
            f"{_LONGEST_QUESTION} are shown to an agent"
        )
    return text.strip()


def _solution_of(record: DataRow) -> WorkedSolution | None:
    if "response" in record.content:
        response = record.get("response")
        return solution_in(response, may_be_plain=False) if isinstance(response, str) else None
    answer = record.get("answer")
    is_given = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    return solution_in(str(answer), may_be_plain=True) if is_given else None


def _split_of(question: str) -> Split:
    return split_of(" ".join(question.lower().split()))


@lru_cache(maxsize=16)
def _numbers(file: QuestionFile, split: Split) -> tuple[int, ...]:
    questions = file.questions()
    found = tuple(number for number, each in enumerate(questions) if split in ("all", each.split))
    if not found:
        raise ValueError(
            f"split: none of the {len(questions)} questions of {file.path} belongs to {split!r}, "
            "which has about one in five of many (eval) or the others (train); use split: all"
        )
    return found


@lru_cache(maxsize=8)
def _pieces(file: QuestionFile) -> tuple[str, ...]:
    questions = file.questions()
    sampled = questions[:: -(-len(questions) // _SAMPLED)]
    return tuple(frequent_pieces(f"{each.text}\n{each.reasoning}" for each in sampled))
