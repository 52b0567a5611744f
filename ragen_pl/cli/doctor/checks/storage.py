"""The run folder: it can be written to, and has room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.plan.disk import DiskPlan
from ragen_pl.cli.plan.render import gib
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.findings import Finding, failure, ok

_OTHERS = 1 << 29
"""Bytes that logs and results may take beside checkpoints and policies."""


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
    free, needed = shutil.disk_usage(existing).free, _OTHERS
    # An error is another check's, or nobody knows the model's size before it is built.
    with suppress(ConfigError):
        needed += DiskPlan.of(subject.planner.counts).total(subject.parts.export)
    if needed > free:
        yield failure(
            f"the run folder grows to {gib(needed)} GiB, but {gib(free)} GiB are free in "
            f"{existing}",
            "free some space, or give another folder (--run_dir)",
        )
        return
    yield ok(f"{run_dir} can be written to; it needs {gib(needed)} of {gib(free)} GiB free")
