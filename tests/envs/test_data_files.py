"""Files of data: what is read, and what is refused with its key, its file and its line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ragen_pl.envs.adapters.skyrl_gym import SkyRLGym
from ragen_pl.envs.code import JsonLines
from ragen_pl.envs.data_files import DataRow, read_named_rows, read_rows
from ragen_pl.envs.math_qa.env import MathQA
from ragen_pl.envs.proof.lean_statements import LeanStatements
from ragen_pl.envs.search_qa.env import SearchQA
from ragen_pl.envs.tools import Search, ToolQuestions
from ragen_pl.envs.web_shop.env import WebShop

GOOD = json.dumps({"question": "Why?", "answer": "so"})
READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "search": ("questions", SearchQA),
    "corpus": ("corpus", Search),
    "tools": ("questions", ToolQuestions),
    "math": ("questions", MathQA),
    "code": ("path", JsonLines),
    "lean": ("path", LeanStatements),
    "skyrl": ("rows", SkyRLGym),
    "shop": ("items", lambda path: WebShop(path, path)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty: it must be JSON lines"),
        (b" \n\n", "is empty"),
        (b"[]", "is empty"),
        (b"3", ", line 1, is no object"),
        (b"[3]", ", entry 1, is no object"),
        (b'"text"', ", line 1, is no object"),
        (b"question,answer\nWhy?,so\n", ", line 1, is no JSON .* must be JSON lines"),
        (b'{\n "question": "Why?"\n}', ", line 1, is no JSON"),
        (b'[\n {"a": 1},\n {"a": 2\n]', ", line 4, is no JSON"),
        (b"[" * 100_000, ", line 1, is no JSON .too deeply nested"),
        (b'{"a": ' + b"9" * 5000 + b"}", ", line 1, is no JSON .*digits"),
        (GOOD.encode("utf-16"), "cannot be read: line 1 is not text in UTF-8; save it"),
        (b"PAR1\x15\x04\n\xff\xfe", "cannot be read: line 2 is not text in UTF-8"),
        (b"\x1f\x8bnothing", "cannot be read"),
    ],
)
def test_files_of_another_form_are_refused(
    tmp_path: Path, reader: str, content: bytes, told: str
) -> None:
    key, read = READERS[reader]
    path = tmp_path / "own.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=told) as caught:
        read(str(path))
    assert str(caught.value).startswith(f"{key}: {path}")


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused(tmp_path: Path, reader: str) -> None:
    key, read = READERS[reader]
    for path, told in (
        (str(tmp_path), "cannot be read .it is a folder: name a file in it"),
        (str(tmp_path / "none"), "cannot be read .No such file"),
        ("null\0byte", "cannot be read .embedded null"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            read(path)
        assert str(caught.value).startswith(f"{key}: {path}")


def test_the_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f"{GOOD}\r\n\r\n{GOOD}\r\n{{oops\r\n")
    with pytest.raises(
        ValueError, match=r"questions: .*, line 4, is no JSON .* at its character 2"
    ):
        read_rows(str(path), "questions")


def test_lines_lists_marks_of_order_and_compressed_files_are_read(tmp_path: Path) -> None:
    """Each holds the same two objects."""
    lines, path = f"{GOOD}\n{GOOD}\n", tmp_path / "own.jsonl"
    for content in (
        lines.encode(),
        lines.encode("utf-8-sig"),
        lines.replace("\n", "\r\n").encode(),
        gzip.compress(lines.encode()),
        json.dumps([json.loads(GOOD)] * 2, indent=1).encode("utf-8-sig"),
    ):
        path.write_bytes(content)
        rows = read_rows(str(path), "questions")
        assert [row.number for row in rows] == [1, 2]
        assert all(row.content == json.loads(GOOD) for row in rows)


def test_a_line_may_hold_other_ends_of_lines(tmp_path: Path) -> None:
    """U+2028 is no end of a line of JSON, though ``splitlines`` takes it for one."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"text": "a\u2028b"}, ensure_ascii=False) + "\n", encoding="utf-8")
    (row,) = read_rows(str(path), "corpus")
    assert (row.number, row.content) == (1, {"text": "a\u2028b"})


def test_an_object_of_objects_is_read_by_names(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text('{"a": {"n": 1}, "b": {"n": 2}}', encoding="utf-8-sig")
    read = partial(read_named_rows, str(path), "attributes")
    assert {name: row.content for name, row in read().items()} == {"a": {"n": 1}, "b": {"n": 2}}
    for text, told in (
        ("[1]", "holds a list; it must be one JSON object"),
        ('{"a": [1]}', "own.json, a, is no object"),
        ("{}\n{}", "line 2, is no JSON .* must be one JSON object"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"attributes: .*{told}"):
            read()


def test_the_fields_of_a_row() -> None:
    row = DataRow("corpus: x, line 3", 3, {"none": None, "zero": 0, "one": "a", "long": "b" * 99})
    assert (row.get("none", "zero"), row.label("zero"), row.label("none")) == (0, "0", "")
    assert row.texts("none") == ()
    with pytest.raises(ValueError, match='line 3: "one" is "a"; it must be a list of texts'):
        row.texts("one")
    assert str(row.unfit("two", "a text")) == (
        'corpus: x, line 3, has no "two", a text; it has none, zero, one, long'
    )
    assert str(row.unfit("none", "a text")).endswith('"none" is null; it must be a text')
    assert str(row.unfit("long", "short")).endswith("b …; it must be short")
