"""``Search``: documents found by words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ragen_pl.envs.tools.index import Corpus, Document, Engine, checked_engine, index_of
from ragen_pl.envs.tools.toolbox import Toolbox

NOTHING = "Nothing found."


@dataclass(frozen=True, slots=True)
class Passage:
    """A document."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """Documents in JSON lines, each with ``title`` and ``text`` (or a list of ``sentences``)."""

    path: str

    def documents(self) -> tuple[Passage, ...]:
        """Read the documents.

        Raises:
            ValueError: if there is no such file, or a line is no document.
        """
        return _passages(self.path)


@lru_cache(maxsize=4)
def _passages(path: str) -> tuple[Passage, ...]:
    return tuple(_passage(line, f"corpus: {path}, line {n}") for n, line in json_lines(path))


def json_lines(path: str, key: str = "corpus") -> Iterator[tuple[int, dict[str, Any]]]:
    """Iterate over the objects of a file of JSON lines, or of one JSON list, with their numbers.

    Raises:
        ValueError: if there is no such file, or it holds something else.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}: {path} cannot be read ({error})") from error
    number = 1
    try:
        if text.lstrip().startswith("["):
            found = list(enumerate(json.loads(text), start=1))
        else:
            found = []
            # Unlike splitlines, which ends a line at U+2028, too.
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    found.append((number, json.loads(line)))
    except json.JSONDecodeError as error:
        line = f"line {number + error.lineno - 1}"
        raise ValueError(
            f"{key}: {path}, {line}, is no JSON ({error.msg} at its character {error.colno}); it "
            "must be JSON lines, or one JSON list"
        ) from error
    for number, each in found:
        if not isinstance(each, dict):
            raise ValueError(f"{key}: {path}, line {number}, is no object of names and values")
    yield from found


def _passage(line: Mapping[str, Any], place: str) -> Passage:
    title, text = line.get("title"), line.get("text", line.get("sentences"))
    if isinstance(text, list):
        text = "".join(str(each) for each in text)
    if not isinstance(title, str) or not isinstance(text, str):
        raise ValueError(f'{place} has no "title" and "text" that are texts')
    return Passage(title, text)


class SearchTool(Toolbox):
    """A search in a corpus.

    Args:
        corpus: The documents.
        engine: What ranks them.
        most: Number of results.
    """

    def __init__(self, corpus: Corpus, engine: Engine, most: int) -> None:
        if most < 1:
            raise ValueError(f"top_k: {most} is not positive")
        self._corpus, self._engine = corpus, checked_engine(engine)
        self._most = most

    def search(self, query: str) -> str:
        """Search the documents and return the best ones.

        Args:
            query: Words to look for.
        """
        found = self._found(query)
        lines = (f"{n}. {each.title}: {each.text}" for n, each in enumerate(found, start=1))
        return "\n".join(lines) or NOTHING

    def _found(self, query: str) -> list[Document]:
        documents, index = index_of(self._corpus, self._engine)
        return [documents[number] for number in index.search(query, self._most)]


class Search(SearchTool):
    """A search in documents of your own.

    Args:
        corpus: File of JSON lines, each with ``title`` and ``text``.
        engine: What ranks the documents: SQLite, or the package bm25s (extra ``search``).
        top_k: Number of results.
    """

    def __init__(self, corpus: str, engine: Engine = "sqlite", top_k: int = 5) -> None:
        super().__init__(CorpusFile(corpus), engine, top_k)
        CorpusFile(corpus).documents()  # a file that cannot be read is told at once
