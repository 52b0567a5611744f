"""One process at a time writes into a folder."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from io import TextIOWrapper
from pathlib import Path

import pytest

from ragen_pl.errors import ConfigError
from ragen_pl.runtime import folder_lock
from ragen_pl.runtime.folder_lock import FolderLock
from tests.support.lock_holder import can_be_locked, held_lock


def test_another_process_is_told_who_holds_it_until_that_one_is_killed(tmp_path: Path) -> None:
    with held_lock(tmp_path) as holder:
        with pytest.raises(ConfigError, match=f"where process {holder.pid} on .* is training"):
            FolderLock(tmp_path)
        with pytest.raises(ConfigError, match=f"process {holder.pid} "):  # it is still held
            FolderLock(tmp_path)
    lock = FolderLock(tmp_path)
    assert not can_be_locked(tmp_path)
    lock.release()
    assert can_be_locked(tmp_path)


def test_a_forked_process_does_not_keep_it(tmp_path: Path) -> None:
    """Workers of environments may outlive a killed run."""
    lock = FolderLock(tmp_path)
    forks = multiprocessing.get_context("fork")
    end = forks.Event()
    child = forks.Process(target=end.wait, daemon=True)
    child.start()
    lock.release()
    assert child.is_alive()
    assert can_be_locked(tmp_path)
    end.set()
    child.join()


def test_a_disk_without_locks_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(os.strerror(37))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    FolderLock(tmp_path).release()


def test_a_platform_without_record_locks_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Windows, which has no ``fcntl``."""
    with held_lock(tmp_path / "run"):
        monkeypatch.setattr(folder_lock, "fcntl", None)
        FolderLock(tmp_path / "run").release()
    FolderLock(tmp_path / "new").release()
    assert (tmp_path / "new").is_dir()


def test_a_folder_that_is_moved_meanwhile_is_not_taken_for_the_one_at_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lockf = tmp_path / "run", fcntl.lockf

    def move_once(file: TextIOWrapper, operation: int) -> None:
        if not (tmp_path / "run.1").exists():
            folder.rename(tmp_path / "run.1")
        lockf(file, operation)

    monkeypatch.setattr(fcntl, "lockf", move_once)
    lock = FolderLock(folder)
    assert not can_be_locked(folder)
    assert can_be_locked(tmp_path / "run.1")
    lock.release()
