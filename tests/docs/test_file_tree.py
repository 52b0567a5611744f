"""The file tables of docs/architecture.md are those of the docstrings."""

from __future__ import annotations

from docs import file_tree


def test_the_page_is_up_to_date() -> None:
    assert file_tree.main(["--check"]) == 0, "run: python docs/file_tree.py"


def test_every_file_has_a_phrase() -> None:
    folders = [folder for name in file_tree.FOLDERS for folder in (file_tree.ROOT / name,)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    empty = {path for path in files if path.name == "__init__.py" and not path.read_text("utf-8")}
    assert [path for path in files if path not in empty and not file_tree.phrase(path)] == []
