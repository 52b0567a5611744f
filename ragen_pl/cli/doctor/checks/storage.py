"""The run folder: it can be written to, and has room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.plan.render import gib
from ragen_pl.runtime.findings import Finding, failure, ok, warning

_LEAST = 1 << 29
"""Bytes that logs and results may take beside the checkpoints."""


def existing_folder(run_dir: Path) -> Path:
    """Return the run folder or, if it does not exist, the nearest one above that does."""
    return next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())


def check_storage(subject: ExaminedRun) -> Iterator[Finding]:
    """Write a file next to where the run will, and read how much space is free."""
    run_dir = subject.parts.run_dir
    existing = existing_folder(run_dir)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"doctor")
    except OSError as error:
        yield failure(
            f"run_dir is {run_dir}, but {existing} cannot be written to: {error.strerror}",
            "give another folder (--run_dir)",
        )
        return
    free = shutil.disk_usage(existing).free
    if free < _LEAST:
        yield warning(
            f"only {gib(free)} GiB are free in {existing}",
            "free some space, or give another folder (--run_dir)",
        )
        return
    yield ok(f"{run_dir} can be written to; {gib(free)} GiB are free")
