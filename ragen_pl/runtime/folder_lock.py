"""A lock on a folder: one process at a time writes into it, and the lock ends with the process."""

from __future__ import annotations

import os
import socket
from io import TextIOWrapper
from pathlib import Path

from ragen_pl.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
"""Name of the lock's file, which stays where it was; what is locked is not its existence."""


class FolderLock:
    """The lock of a folder, held from its construction until ``release`` or the process's end.

    It is a record lock of POSIX: the kernel frees it when its process is killed, and processes that
    were forked from it do not hold it, so nothing has to be cleaned up. It ends early if its
    process closes another handle of the same file, so nothing else may open that. Where the file
    system or the platform has none (Windows), nothing is locked.

    Args:
        folder: Created if it is missing.

    Raises:
        ConfigError: when another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._file: TextIOWrapper | None = None
        if fcntl is None:
            folder.mkdir(parents=True, exist_ok=True)
            return
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a+", encoding="utf-8")
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # POSIX allows either
                file.seek(0)
                holder = file.read().strip() or "another process"
                file.close()
                raise ConfigError(
                    f"run_dir is {folder}, where {holder} is training\n"
                    "  wait for it, stop it, or give another --run_dir"
                ) from error
            except OSError:  # a file system without locks
                file.close()
                return
            if _is_still(file, folder / LOCK):
                break
            file.close()  # the folder was moved between opening and locking: this is another's
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let other processes have the folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_still(file: TextIOWrapper, path: Path) -> bool:
    """Tell whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
