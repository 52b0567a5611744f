"""The record of faults: what went wrong in a run that went on.

Every fault is recorded where it is noticed. ``callbacks.FaultLog`` writes the records to the run
folder; the warnings in the terminal are fewer. docs/faults.md lists the kinds and what each does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

RECORDS = logging.getLogger("ragen_pl.faults")
"""The logger of all records. It hands them to its own handlers only, none of which prints."""
RECORDS.propagate = False
RECORDS.setLevel(logging.INFO)
RECORDS.addHandler(logging.NullHandler())
_ATTRIBUTE = "fault"
"""Attribute of a log record that holds the fault."""


class FaultKind(StrEnum):
    """What failed."""

    ENVIRONMENT = "environment"
    """An environment raised, hung, or broke its contract: one trajectory is left out."""
    WORKER = "worker"
    """A process of environments was killed or died; another one took its place."""
    ROLLOUT = "rollout"
    """Every trajectory of a rollout failed: an iteration without an update."""
    UPDATE = "update"
    """A loss or a gradient was not finite: an optimizer step that was skipped."""
    EVALUATION = "evaluation"
    """An evaluation set on which every trajectory failed: no result."""
    WRITE = "write"
    """A file could not be written: the one before it was kept."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: FaultKind
    text: str
    """What happened, in one line."""
    where: Mapping[str, int | str] = field(default_factory=dict)
    """Where it happened, such as iteration, group, member and seed."""


def record_fault(kind: FaultKind, text: str, **where: int | str) -> None:
    """Record a fault; nothing is printed."""
    RECORDS.info("%s: %s", kind, text, extra={_ATTRIBUTE: Fault(kind, text, where)})


class FaultHandler(logging.Handler):
    """Base class of what receives every fault of this process; add it to ``RECORDS``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record's fault on."""
        fault = getattr(record, _ATTRIBUTE, None)
        if isinstance(fault, Fault):
            self.receive(fault)

    def receive(self, fault: Fault) -> None:
        """Handle a fault; calls never overlap."""
        raise NotImplementedError
