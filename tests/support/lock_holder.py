"""Another process that holds a folder's lock: a process's own locks do not stop itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragen_pl.errors import ConfigError
from ragen_pl.runtime.folder_lock import FolderLock

_ROOT = Path(__file__).parents[2]


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.lock_holder", str(folder)]


@contextmanager
def held_lock(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold a folder's lock; it is killed at the end, and frees nothing."""
    process = subprocess.Popen(
        _command(folder), cwd=_ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def can_be_locked(folder: Path) -> bool:
    """Return whether another process gets the folder's lock."""
    done = subprocess.run(
        _command(folder), cwd=_ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.stdout in ("held\n", "refused\n"), done.stderr
    return done.stdout == "held\n"


if __name__ == "__main__":
    try:
        lock = FolderLock(Path(sys.argv[1]))
    except ConfigError:
        print("refused")
    else:
        print("held", flush=True)
        sys.stdin.read()
