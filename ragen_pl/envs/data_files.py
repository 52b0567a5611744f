"""Files of data of your own: JSON lines, or one JSON document.

Every error names the key of the configuration, the file, and the line or the entry.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_pl.errors import ConfigError

ROWS = "JSON lines (an object a line), or one JSON list of objects"
"""The form of a file of rows, in words."""
_GZIP = b"\x1f\x8b"
"""What every file begins with that gzip compressed."""
_LONGEST_SHOWN = 60


@dataclass(frozen=True, slots=True)
class DataRow:
    """An object of a file."""

    place: str
    """Key, file, and line or entry: the beginning of a message about the row."""
    number: int
    content: Mapping[str, Any]

    def get(self, *names: str) -> Any:
        """Return the first of these fields that the row has and that is not null; else None."""
        return next((v for n in names if (v := self.content.get(n)) is not None), None)

    def label(self, name: str) -> str:
        """Return a field as text; empty if the row has none."""
        given = self.get(name)
        return "" if given is None else str(given)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a field that is a list of texts, or null.

        Raises:
            ConfigError: if it is something else, such as a single text.
        """
        given = self.content.get(name)
        if given is None:
            return ()
        if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
            raise self.unfit(name, "a list of texts")
        return tuple(given)

    def unfit(self, name: str, wanted: str) -> ConfigError:
        """Return an error about a field that has another form than the wanted one."""
        given = self.content.get(name)
        if name not in self.content:
            known = ", ".join(map(str, self.content)) or "nothing"
            return ConfigError(f'{self.place}, has no "{name}", {wanted}; it has {known}')
        shown = json.dumps(given, ensure_ascii=False)
        shown = shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]} …"
        return ConfigError(f'{self.place}: "{name}" is {shown}; it must be {wanted}')


def read_rows(path: str, key: str) -> tuple[DataRow, ...]:
    """Read a file of JSON lines, or of one JSON list of objects; there is at least one row.

    Args:
        path: The file, which gzip may have compressed.
        key: The key that names it, for messages.

    Raises:
        ConfigError: if it cannot be read, is in another form, or has no rows.
    """
    text = _read_text(path, key)
    is_list = text.lstrip()[:1] == "["
    rows = tuple(_list_rows(text, path, key) if is_list else _line_rows(text, path, key))
    if not rows:
        raise ConfigError(f"{key}: {path} is empty: it must be {ROWS}")
    return rows


def read_object(path: str, key: str) -> dict[str, Any]:
    """Read a file of one JSON object.

    Raises:
        ConfigError: if it cannot be read, or holds something else.
    """
    found = _parsed(_read_text(path, key), path, key, 1, "one JSON object")
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise ConfigError(f"{key}: {path} holds a {kind}; it must be one JSON object")
    return found


def read_named_rows(path: str, key: str) -> dict[str, DataRow]:
    """Read a file of one JSON object that has further objects by their names.

    Raises:
        ConfigError: if it cannot be read, or holds something else.
    """
    named = enumerate(read_object(path, key).items(), start=1)
    return {name: row_of(each, f"{key}: {path}, {name}", number) for number, (name, each) in named}


def row_of(content: Any, place: str, number: int) -> DataRow:
    """Return an object as a row.

    Raises:
        ConfigError: if it is none.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{place}, is no object of names and values")
    return DataRow(place, number, content)


def _list_rows(text: str, path: str, key: str) -> Iterator[DataRow]:
    entries = _parsed(text, path, key, 1, ROWS)
    for number, entry in enumerate(entries, start=1):
        yield row_of(entry, f"{key}: {path}, entry {number}", number)


def _line_rows(text: str, path: str, key: str) -> Iterator[DataRow]:
    # Unlike splitlines, which ends a line at U+2028, too.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            content = _parsed(line, path, key, number, ROWS)
            yield row_of(content, f"{key}: {path}, line {number}", number)


def _parsed(text: str, path: str, key: str, first_line: int, wanted: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {first_line + error.lineno - 1}"
        told = f"{error.msg} at its character {error.colno}"
    except RecursionError:
        line, told = f"line {first_line}", "too deeply nested"
    except ValueError as error:  # a number of thousands of digits
        line, told = f"line {first_line}", str(error)
    raise ConfigError(f"{key}: {path}, {line}, is no JSON ({told}); the file must be {wanted}")


def _read_text(path: str, key: str) -> str:
    """Read a file of text in UTF-8, whose ends of lines become those of Unix."""
    file = Path(path).expanduser()
    try:
        if file.is_dir():
            raise IsADirectoryError(None, "it is a folder: name a file in it")
        raw = file.read_bytes()
        if file.suffix == ".gz" or raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
    except OSError as error:
        told = error.strerror or str(error)
        raise ConfigError(f"{key}: {path} cannot be read ({told})") from error
    except (EOFError, ValueError, zlib.error) as error:  # damaged, or no path at all
        raise ConfigError(f"{key}: {path} cannot be read ({error})") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{key}: {path} cannot be read: line {line} is not text in UTF-8; save it as UTF-8, "
            "or name another file"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
