"""What a check finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ragen_pl.cli.doctor.subject import Subject


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    """The run can start, but this will probably disappoint."""
    FAILURE = "failure"
    """The run would fail, or learn nothing."""
    SKIPPED = "skipped"
    """Not checked, because something that it needs has failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about one check."""

    level: Level
    text: str
    remedy: str = ""
    """What to do; empty if there is nothing to mend."""
    details: tuple[str, ...] = ()
    """Further lines, such as samples."""


def ok(text: str, *details: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(Level.OK, text, details=details)


def warning(text: str, remedy: str, *details: str) -> Finding:
    """Return the finding of something that will probably disappoint."""
    return Finding(Level.WARNING, text, remedy, details)


def failure(text: str, remedy: str, *details: str) -> Finding:
    """Return the finding of something that stops the run or its learning."""
    return Finding(Level.FAILURE, text, remedy, details)


Check = Callable[[Subject], Iterator[Finding]]
"""A check: it yields one finding, or one for each thing that is wrong. What it raises becomes a
failure."""
