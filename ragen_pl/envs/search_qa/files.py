"""Questions of your own, in HotpotQA's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ragen_pl.envs.tools.questions import Question, answers_of
from ragen_pl.envs.tools.search import Passage, json_lines


@lru_cache(maxsize=8)
def questions_of(path: str) -> tuple[Question, ...]:
    """Read questions; the titles of ``supporting_facts`` are what its expert searches for.

    Raises:
        ValueError: if the file has none, or a line is no question.
    """
    found = []
    for number, line in json_lines(path, "questions"):
        text, golds = line.get("question"), answers_of(line)
        if not isinstance(text, str) or not golds:
            raise ValueError(
                f'questions: {path}, line {number}, has no "question" and "answer" that are texts'
            )
        searches = tuple(("search", title) for title in _supporting(line))
        found.append(Question(text, golds, str(line.get("level", "")), searches))
    if not found:
        raise ValueError(f"questions: {path} has no questions")
    return tuple(found)


def _supporting(line: Mapping[str, Any]) -> list[str]:
    """Return the different titles of the supporting facts: pairs, or the columns of a table."""
    given = line.get("supporting_facts") or ()
    titles = given["title"] if isinstance(given, dict) else [each[0] for each in given]
    return list(dict.fromkeys(str(title) for title in titles))


@dataclass(frozen=True, slots=True)
class Contexts:
    """The documents that come with the questions themselves: their ``context``."""

    path: str

    def documents(self) -> tuple[Passage, ...]:
        """Return the documents, each title once.

        Raises:
            ValueError: if no question has a context.
        """
        return _contexts(self.path)


@lru_cache(maxsize=4)
def _contexts(path: str) -> tuple[Passage, ...]:
    found: dict[str, Passage] = {}
    for _, line in json_lines(path, "questions"):
        for title, sentences in _pairs(line.get("context") or ()):
            text = "".join(sentences) if isinstance(sentences, list) else str(sentences)
            found.setdefault(title, Passage(title, text))
    if not found:
        raise ValueError(
            f'corpus: null needs questions with a "context" of their own, and those of {path} have '
            "none: give a corpus of JSON lines with title and text"
        )
    return tuple(found.values())


def _pairs(context: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over titles and sentences: pairs, or the columns of a table."""
    if isinstance(context, dict):
        yield from zip(context["title"], context["sentences"], strict=True)
    else:
        yield from ((str(title), sentences) for title, sentences in context)
