"""Files that are there as a whole, whatever happens while they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ragen_pl.runtime.durable_files import write_lines, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_in_folders_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.html"
    write_text(path, "one")
    write_lines(path, ("two\n", "three\n"))
    assert path.read_bytes() == b"two\nthree\n"
    assert names(path.parent) == ["report.html"]


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "final.jsonl"
    write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert names(tmp_path) == ["final.jsonl"]
    assert path.read_text() == "old"


def test_a_killed_write_leaves_the_old_file_and_the_next_one_replaces_the_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "final.jsonl"
    write_text(path, "old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "newer")
    assert path.read_text() == "newer"
    assert names(tmp_path) == ["final.jsonl"]


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_text(tmp_path / "run", "new")
    assert names(tmp_path) == ["run"]
