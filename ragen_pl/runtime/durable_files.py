"""Files and folders that survive a kill and a power cut: written under a temporary name, flushed
to the disk, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

DRAFT, REPLACED = ".tmp", ".old"
"""Suffixes, in place of a path's own, of what is being written and of a folder being replaced."""


def draft_of(path: Path) -> Path:
    """Return the temporary name under which a file or a folder is written."""
    return path.with_suffix(DRAFT)


def flush(path: Path) -> None:
    """Wait until a file, or a folder with everything in it, is on the disk."""
    if path.is_dir():
        for each in sorted(path.iterdir()):
            flush(each)
    # On Windows neither a folder nor a file opened for reading can be flushed.
    if os.name == "posix":
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def put_in_place(draft: Path, path: Path, before: Path | None = None) -> None:
    """Flush a finished draft and move it to its place; at any moment a complete one is there.

    A file is replaced atomically. Folders cannot be: between two renames the replaced one is under
    ``before`` or its suffix ``.old`` alone, where ``recover`` finds it.

    Args:
        draft: The finished file or folder, on the same disk.
        path: Its place.
        before: Where to keep what was there; None removes it.
    """
    flush(draft)
    if before is not None and path.exists():
        _keep(path, before)
    if path.is_dir() or (draft.is_dir() and path.exists()):
        old = path.with_suffix(REPLACED)
        remove(old)
        path.rename(old)
        draft.rename(path)
        _flush_folder(path)
        remove(old)
    else:
        draft.replace(path)
        _flush_folder(path)


def _keep(path: Path, before: Path) -> None:
    """Keep a file under a second name, or move a folder to it."""
    old, second = before.with_suffix(REPLACED), draft_of(before)
    remove(old)
    remove(second)
    if before.is_dir() or (path.is_dir() and before.exists()):
        before.rename(old)
    if path.is_dir():
        path.rename(before)
    else:
        try:
            os.link(path, second)
        except OSError:  # a disk without links
            shutil.copyfile(path, second)
            flush(second)
        second.replace(before)
    _flush_folder(before)
    remove(old)


def recover(folder: Path, suffix: str) -> None:
    """Clean a folder after a killed save: remove drafts, and restore what was being replaced.

    Args:
        folder: The folder, which need not exist.
        suffix: Suffix of everything that is kept in it, empty for folders without one.
    """
    for draft in folder.glob(f"*{DRAFT}"):
        remove(draft)
    for old in folder.glob(f"*{REPLACED}"):
        place = old.with_suffix(suffix)
        if place.exists():
            remove(old)
        else:
            old.rename(place)


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically; ``write_lines`` says what else it promises."""
    write_lines(path, (text,))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Replace a file atomically: a process that is killed at any moment leaves the old one or the
    new one.

    Processes that write the same file do not disturb each other; the last one wins.

    Raises:
        OSError: if it cannot be written, as when the disk is full or a folder has its name; an old
            file then stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        flush(draft)
        draft.replace(path)  # refuses to replace a folder
        _flush_folder(path)
    except OSError:
        draft.unlink(missing_ok=True)  # else a full disk would stay full
        raise


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush_folder(path: Path) -> None:
    """Wait until the names in a path's folder are on the disk."""
    if os.name == "posix":
        number = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
