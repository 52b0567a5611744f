"""Folders that several nodes write to: whether all see the same one, and what others wrote."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from ragen_pl.distributed.collectives import all_or_none, gather_objects, rank
from ragen_pl.distributed.shard_folder import check_shards
from ragen_pl.errors import ConfigError

PATIENCE_S = 60.0
"""Seconds in which a file of another node appears: network disks keep what they saw of a folder."""
_BETWEEN_S = 0.5


def check_shared(folder: Path, patience: float = PATIENCE_S) -> None:
    """Check that what the first rank writes to a folder is seen by all; every rank must call it.

    Args:
        folder: The folder, as this rank names it.
        patience: Seconds to wait for the file.

    Raises:
        ConfigError: on all ranks, if one does not see it.
    """
    mark = folder / f".seen-by-all-{gather_objects(uuid4().hex)[0]}"

    def write() -> None:
        if rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()

    def see() -> None:
        if not mark.exists():
            raise ConfigError(
                f"run_dir is {folder}, which rank {rank()} does not share with the first one: its "
                "shards of a checkpoint would be lost\n"
                "  give a --run_dir on a disk that all nodes mount, as an absolute path"
            )

    all_or_none(write)
    try:
        all_or_none(lambda: _in_time(see, patience))
    finally:
        if rank() == 0:
            mark.unlink(missing_ok=True)


def wait_for_shards(folder: Path, patience: float = PATIENCE_S) -> None:
    """Wait until every shard is seen in full, which other nodes may have written.

    Args:
        patience: Seconds for it.

    Raises:
        ConfigError: as ``check_shards``, when they are over.
    """
    _in_time(lambda: check_shards(folder), patience)


def _in_time(check: Callable[[], None], patience: float) -> None:
    """Make a check until it passes; when the seconds are over, let its ConfigError through."""
    until = time.monotonic() + patience
    while True:
        try:
            return check()
        except ConfigError:
            if time.monotonic() > until:
                raise
        time.sleep(_BETWEEN_S)
