"""Full-text indexes over documents, ranked by BM25; equal queries give equal results everywhere."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol

from ragen_pl.envs.base import one_of
from ragen_pl.envs.packages import load
from ragen_pl.errors import ConfigError

Engine = Literal["sqlite", "bm25s"]
"""SQLite's FTS5, which comes with Python, and the package bm25s, which is quicker on large
collections."""
_WORD = re.compile(r"\w+")
_NO_SPACES = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana, and marks that repeat
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
    "\u1100-\u11ff\uac00-\ud7af"  # Hangul, whose words carry particles
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
)
"""Characters of scripts in which no spaces stand between words."""
_RUN = re.compile(f"[{_NO_SPACES}]+")
_MOST_WORDS = 64
"""Words of a query that are looked for."""
_TITLE_WEIGHT = 2.0


class Corpus(Protocol):
    """A collection of documents that can be read again; equal ones share an index."""

    def documents(self) -> Sequence[Document]: ...

    def __hash__(self) -> int: ...


class Document(Protocol):
    """A title and a text."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


class Index(Protocol):
    """What finds documents."""

    def search(self, query: str, most: int) -> list[int]:
        """Return the numbers of the best documents, best first; ties go to the earlier one."""
        ...


class SqliteIndex:
    """An index in memory, of SQLite's FTS5; words are matched by their stems."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._lock = threading.Lock()
        self._tables = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._tables.execute(
                "create virtual table found using fts5"
                "(title, text, tokenize='porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"engine: this Python's SQLite has no full-text search ({error}): use engine: bm25s"
            ) from error
        rows = (
            (number, document_text(each.title), document_text(each.text))
            for number, each in enumerate(documents)
        )
        self._tables.executemany("insert into found(rowid, title, text) values (?, ?, ?)", rows)

    def search(self, query: str, most: int) -> list[int]:
        """Return the best documents that have a word of the query."""
        words = query_words(query)
        if not words:
            return []
        wanted = " OR ".join(f'"{word}"' for word in words)
        sql = (
            "select rowid from found where found match ? "
            f"order by bm25(found, {_TITLE_WEIGHT}, 1.0), rowid limit ?"
        )
        with self._lock:
            return [row[0] for row in self._tables.execute(sql, (wanted, most))]


class Bm25sIndex:
    """An index of the package bm25s, held in arrays."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._bm25s = load("bm25s", "engine: bm25s", "search")
        texts = [f"{each.title} {each.title} {each.text}" for each in documents]
        tokens = self._tokens(map(document_text, texts))
        self._index = self._bm25s.BM25()
        self._index.index(tokens, show_progress=False)
        self._count = len(texts)

    def search(self, query: str, most: int) -> list[int]:
        """Return the best documents that have a word of the query."""
        words: Any = self._tokens([" ".join(query_words(query))], return_ids=False)[0]
        if not words:
            return []
        scores = self._index.get_scores(list(words))
        best = sorted((-float(scores[number]), number) for number in scores.nonzero()[0].tolist())
        return [number for _, number in best[:most]]

    def _tokens(self, texts: Iterable[str], **options: Any) -> Any:
        pattern = rf"\b\w\w+\b|[{_NO_SPACES}]+"
        return self._bm25s.tokenize(
            list(texts), stopwords="en", token_pattern=pattern, show_progress=False, **options
        )


_KINDS: dict[str, type[SqliteIndex] | type[Bm25sIndex]] = {
    "sqlite": SqliteIndex,
    "bm25s": Bm25sIndex,
}


def checked_engine(engine: Engine) -> Engine:
    """Return an engine after checking that it can be used.

    Raises:
        ValueError: if there is no such engine.
        ConfigError: if its package is not installed.
    """
    if one_of("engine", engine, Engine) == "bm25s":
        load("bm25s", "engine: bm25s", "search")
    return engine


def query_words(query: str) -> list[str]:
    """Return the different words of a query, in its order, the first 64 of them."""
    text = _with_spaces(query, is_query=True)
    return list(dict.fromkeys(each.lower() for each in _words(text)))[:_MOST_WORDS]


def document_text(text: str) -> str:
    """Return a text as it is indexed: scripts without spaces as characters and pairs of them.

    A query has the pairs, or a character that stands alone (as Lucene's CJK analyzer).
    """
    return _with_spaces(text, is_query=False)


def _with_spaces(text: str, *, is_query: bool) -> str:
    text = text.encode(errors="replace").decode()  # half a surrogate pair is no text
    if text.isascii():
        return text

    def cut(run: re.Match[str]) -> str:
        characters = run[0]
        pairs = [characters[i : i + 2] for i in range(len(characters) - 1)]
        return f" {' '.join(pairs if is_query and pairs else (*characters, *pairs))} "

    return _RUN.sub(cut, unicodedata.normalize("NFKC", text))


def _words(text: str) -> Iterator[str]:
    """Yield words, and the pairs of scripts whose vowels are marks and thus no letters."""
    for part in text.split():
        if _RUN.fullmatch(part):
            yield part
        else:
            yield from _WORD.findall(part)


def index_of(corpus: Corpus, engine: Engine) -> tuple[Sequence[Document], Index]:
    """Return the documents of a corpus and their index, made once in a process."""
    with _BUILDING:
        return _built(corpus, engine, os.getpid())


_BUILDING = threading.Lock()


@lru_cache(maxsize=16)
def _built(corpus: Corpus, engine: Engine, process: int) -> tuple[Sequence[Document], Index]:
    documents = corpus.documents()
    return documents, _KINDS[engine](documents)
