"""``Search``: documents found by words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.tools.index import Corpus, Document, Engine, checked_engine, index_of
from ragen_pl.envs.tools.toolbox import Toolbox
from ragen_pl.errors import ConfigError

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
            ConfigError: if there is no such file, a line is no document, or all are empty.
        """
        return _passages(self.path)


@lru_cache(maxsize=4)
def _passages(path: str) -> tuple[Passage, ...]:
    return not_empty(tuple(map(_passage, read_rows(path, "corpus"))), f"corpus: {path}")


def not_empty(documents: tuple[Passage, ...], place: str) -> tuple[Passage, ...]:
    """Return the documents of a corpus that are not empty.

    Raises:
        ConfigError: if there are none, so that no search would find anything.
    """
    found = tuple(each for each in documents if each.title.strip() or each.text.strip())
    if not found:
        raise ConfigError(
            f"{place} has {len(documents)} documents, none of which has a title or a text: no "
            "search would find anything"
        )
    return found


def _passage(row: DataRow) -> Passage:
    text = row.get("text", "sentences")
    if isinstance(text, list):
        text = "".join(row.texts("text" if row.get("text") else "sentences"))
    for name, given in (("title", row.get("title")), ("text", text)):
        if not isinstance(given, str):
            raise row.unfit(name, "a text")
    return Passage(row.get("title"), text)


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
