"""What a check finds, and how it is told."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ragen_pl.runtime.visible_text import visible

_WIDTH, _INDENT = 100, 25


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but something could not be seen."""
    WARNING = "warning"
    """It can be used, but this will probably disappoint."""
    FAILURE = "failure"
    """It would fail, or nothing would be learned."""
    SKIPPED = "skipped"
    """Not checked, because something that it needs has failed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line about one check."""

    level: Severity
    text: str
    remedy: str = ""
    """What to do; empty if there is nothing to mend."""
    details: tuple[str, ...] = ()
    """Further lines, such as samples."""
    command: str = ""
    """What to type in a shell for the remedy, on a line that is not wrapped; empty for nothing."""


def ok(text: str, *details: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(Severity.OK, text, details=details)


def note(text: str, remedy: str = "", command: str = "") -> Finding:
    """Return the finding of a check that found nothing wrong, but could not see all."""
    return Finding(Severity.NOTE, text, remedy, command=command)


def warning(text: str, remedy: str, *details: str) -> Finding:
    """Return the finding of something that will probably disappoint."""
    return Finding(Severity.WARNING, text, remedy, details)


def failure(text: str, remedy: str, *details: str) -> Finding:
    """Return the finding of something that stops a run or its learning."""
    return Finding(Severity.FAILURE, text, remedy, details)


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A finding with the check that it is from."""

    check: str
    finding: Finding
    seconds: float
    """Time since the check began."""
    subject: str = ""
    """What was checked, where there are several things."""

    @property
    def text(self) -> str:
        """The line as a terminal shows it, with the remedy and the details below it."""
        finding = self.finding
        head = f"{finding.level:<9}{self.check:<{_INDENT - 9}}"
        parts = [_wrapped(head, finding.text)]
        if finding.remedy:
            parts.append(_wrapped(" " * (_INDENT - 2) + "→ ", finding.remedy))
        if finding.command:
            parts.append(" " * _INDENT + visible(finding.command))
        parts += [_wrapped(" " * _INDENT, detail) for detail in finding.details]
        return "\n".join(parts)

    @property
    def plain(self) -> dict[str, Any]:
        """The line as plain data."""
        return {
            **({"subject": self.subject} if self.subject else {}),
            "check": self.check,
            "level": str(self.finding.level),
            "text": self.finding.text,
            "remedy": self.finding.remedy,
            **({"command": self.finding.command} if self.finding.command else {}),
            "details": list(self.finding.details),
            "seconds": round(self.seconds, 2),
        }


def has_failed(lines: Sequence[CheckFinding]) -> bool:
    """Return whether a line is a failure."""
    return any(line.finding.level is Severity.FAILURE for line in lines)


def summary(lines: Sequence[CheckFinding], seconds: float) -> str:
    """Count the findings by level, in one line."""
    counts = Counter(line.finding.level for line in lines)
    found = ", ".join(_counted(counts[level], level) for level in Severity if counts[level])
    return f"{found}; {seconds:.0f} s"


def _counted(count: int, level: Severity) -> str:
    is_noun = level in (Severity.NOTE, Severity.WARNING, Severity.FAILURE)
    return f"{count} {level}{'s' if is_noun and count > 1 else ''}"


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        visible(text),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )
