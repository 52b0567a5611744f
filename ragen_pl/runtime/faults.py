"""The record of faults: what went wrong in a run that went on.

Every fault is recorded where it is noticed. ``callbacks.FaultLog`` writes the records to the run
folder; the warnings in the terminal are fewer. docs/faults.md lists the kinds and what each does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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
    ENDPOINT = "endpoint"
    """An endpoint did not answer for the policy: one trajectory is left out."""
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
    is_shared: bool = False
    """Whether every rank records this same fault, which is then counted once."""


Receiver = Callable[[Fault], None]
_RECEIVERS: list[Receiver] = []
_LOCK = threading.RLock()


def add_receiver(receiver: Receiver) -> None:
    """Have a function called with every fault of this process; its calls never overlap."""
    with _LOCK:
        _RECEIVERS.append(receiver)


def remove_receiver(receiver: Receiver) -> None:
    """Undo ``add_receiver``."""
    with _LOCK:
        _RECEIVERS.remove(receiver)


def record_fault(kind: FaultKind, text: str, **where: int | str) -> None:
    """Record a fault; nothing is printed.

    Args:
        kind: What failed.
        text: What happened, in one line.
        where: Where it happened, such as iteration, group, member and seed.
    """
    _hand_on(Fault(kind, text, where))


def record_shared_fault(kind: FaultKind, text: str, **where: int | str) -> None:
    """Record a fault that every rank records, and which is counted once."""
    _hand_on(Fault(kind, text, where, is_shared=True))


def _hand_on(fault: Fault) -> None:
    with _LOCK:
        for receiver in _RECEIVERS:
            receiver(fault)
