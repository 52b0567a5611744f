"""Questions of your own, in HotpotQA's form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.tools.questions import Question, answers_of, text_of
from ragen_pl.envs.tools.search import Passage, not_empty
from ragen_pl.errors import ConfigError

_FACTS = "a list of titles, or of pairs of a title and a number, or a table with a column title"
_CONTEXT = "a list of pairs of a title and its sentences, or a table of title and sentences"


@lru_cache(maxsize=8)
def questions_of(path: str) -> tuple[Question, ...]:
    """Read questions; the titles of ``supporting_facts`` are what its expert searches for.

    Raises:
        ConfigError: if the file has none, or a line is no question.
    """
    found = []
    for row in read_rows(path, "questions"):
        searches = tuple(("search", title) for title in _supporting(row))
        found.append(Question(text_of(row), answers_of(row), row.label("level"), searches))
    return tuple(found)


def _supporting(row: DataRow) -> list[str]:
    """Return the different titles of the supporting facts."""
    given = row.get("supporting_facts") or []
    if isinstance(given, dict):
        given = given.get("title")
    if not isinstance(given, list):
        raise row.unfit("supporting_facts", _FACTS)
    titles = [each[0] if isinstance(each, list) and each else each for each in given]
    if not all(isinstance(title, str) for title in titles):
        raise row.unfit("supporting_facts", _FACTS)
    return list(dict.fromkeys(titles))


@dataclass(frozen=True, slots=True)
class Contexts:
    """The documents that come with the questions themselves: their ``context``."""

    path: str

    def documents(self) -> tuple[Passage, ...]:
        """Return the documents, each title once.

        Raises:
            ConfigError: if no question has a context, or all documents are empty.
        """
        return _contexts(self.path)


@lru_cache(maxsize=4)
def _contexts(path: str) -> tuple[Passage, ...]:
    found: dict[str, Passage] = {}
    for row in read_rows(path, "questions"):
        for title, text in _documents(row):
            found.setdefault(title, Passage(title, text))
    if not found:
        raise ConfigError(
            f'corpus: null needs questions with a "context" of their own, and those of {path} have '
            "none: give a corpus of JSON lines with title and text"
        )
    return not_empty(tuple(found.values()), f'questions: the "context" of {path}')


def _documents(row: DataRow) -> Iterator[tuple[str, str]]:
    """Iterate over the titles and texts of a question's context."""
    for title, sentences in _pairs(row):
        parts = sentences if isinstance(sentences, list) else [sentences]
        if not isinstance(title, str) or not all(isinstance(part, str) for part in parts):
            raise row.unfit("context", _CONTEXT)
        yield title, "".join(parts)


def _pairs(row: DataRow) -> list[Any]:
    given = row.get("context") or []
    if isinstance(given, dict):
        titles, sentences = given.get("title"), given.get("sentences")
        if not (isinstance(titles, list) and isinstance(sentences, list)) or len(titles) != len(
            sentences
        ):
            raise row.unfit("context", f"{_CONTEXT}, of equal lengths")
        return list(zip(titles, sentences, strict=True))
    if not isinstance(given, list) or not all(
        isinstance(each, list) and len(each) == 2 for each in given
    ):
        raise row.unfit("context", _CONTEXT)
    return given
