"""``LeanProver``: a script checked as one file of Lean 4, and Lean's messages read.

The whole script is checked at every step. What was accepted is remembered within the process, so
that a step is one check and the members of a group share what they have in common.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ragen_pl.envs.proof.lean_file import LeanFile, lean_file
from ragen_pl.envs.proof.prover import Check, ProverError, Theorem

STANDARD_AXIOMS = ("propext", "Classical.choice", "Quot.sound")
"""The axioms of Lean's own library, which nearly every proof of Mathlib rests on."""
_UNSOLVED = "unsolved goals"
_DONE = "no goals"


@dataclass(frozen=True, slots=True)
class LeanMessage:
    """A message of Lean, as ``lean --json`` and its REPL have it."""

    severity: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True)
class LeanReport:
    """What Lean says of a file: its messages, or why there are none."""

    messages: tuple[LeanMessage, ...] = ()
    fault: str = ""
    late: bool = False
    """Whether the fault is that time ran out."""


@dataclass(frozen=True)
class LeanProver(ABC):
    """Lean 4 as a prover, wherever it runs.

    A step is accepted if the only error of the file is that goals are left after it. A proof counts
    if the file has no error and rests on no axiom but those that are allowed, so not on ``sorry``.
    """

    @property
    def layout(self) -> str:
        """How Lean shows what is left to prove."""
        return "hypotheses, then the goal after ⊢"

    @property
    def example(self) -> str:
        """Two tactics."""
        return "intro n or exact h"

    @property
    @abstractmethod
    def allowed_axioms(self) -> frozenset[str]:
        """Axioms a proof may rest on."""

    @abstractmethod
    def report(self, text: str) -> LeanReport:
        """Check a file.

        Raises:
            ProverError: if Lean cannot be had.
        """

    def check(self, theorem: Theorem, script: Sequence[str]) -> Check:
        """Check the last step of a script whose other steps were accepted."""
        steps = tuple(script)
        try:
            before = _accepted(self, theorem, steps[:-1])
        except _RefusedError as error:
            told = f"{error.check.verdict}: {error.check.message}"
            raise ProverError(
                f"{theorem.name}: Lean refuses the statement or a step before the last: {told}"
            ) from error
        if not steps:
            return before
        try:
            return _accepted(self, theorem, steps)
        except _RefusedError as error:
            return replace(error.check, goals=before.goals)


class _RefusedError(Exception):
    """A script whose last step is not accepted."""

    def __init__(self, check: Check) -> None:
        super().__init__(check.message)
        self.check = check


@lru_cache(maxsize=4096)
def _accepted(prover: LeanProver, theorem: Theorem, script: tuple[str, ...]) -> Check:
    """Check a script; an exception, which is not remembered, is for one that is refused."""
    try:
        file = lean_file(theorem, script)
    except ValueError as error:
        raise _RefusedError(Check("rejected", "", proved=False, message=str(error))) from error
    check = verdict_of(prover.report(file.text), file, prover.allowed_axioms)
    if check.verdict != "accepted":
        raise _RefusedError(check)
    return check


def verdict_of(report: LeanReport, file: LeanFile, allowed: frozenset[str]) -> Check:
    """Return what a report says of a file's last step; without goals if it is not accepted.

    Goals that are left within a step, as after ``have h : p := by skip``, are an error like any
    other. Where the error is tells them apart; lines are counted from the last command's answer,
    since a server that has read the imports before counts without them.
    """
    if report.fault:
        return Check("time" if report.late else "rejected", "", proved=False, message=report.fault)
    answer = next((m for m in reversed(report.messages) if _axioms(m, file) is not None), None)
    told = [m for m in report.messages if m.severity == "error"]
    if answer is not None:
        line = file.by[0] - file.last + answer.line
        here = [m for m in told if (m.line, m.column) == (line, file.by[1])]
        left = [m for m in here if m.text.startswith(_UNSOLVED)]
        told = [m for m in told if m not in left]
        if left and not told:
            goals = left[0].text.removeprefix(_UNSOLVED).strip()
            return Check("accepted", goals, proved=False)
    if told or answer is None:
        message = told[0].text if told else "Lean has not read the file to its end"
        return Check("rejected", "", proved=False, message=message)
    extra = sorted((_axioms(answer, file) or frozenset()) - allowed)
    if extra:
        message = f"the proof rests on {', '.join(extra)}"
        return Check("rejected", "", proved=False, message=message)
    return Check("accepted", _DONE, proved=True)


def _axioms(message: LeanMessage, file: LeanFile) -> frozenset[str] | None:
    """Return the axioms that the answer to ``#print axioms`` lists; None for another message."""
    if message.column != 0 or message.severity == "error":
        return None
    found = _AXIOMS.fullmatch(message.text.strip())
    if found is None or not f".{found[1]}".endswith(f".{file.name.removeprefix('_root_.')}"):
        return None
    return frozenset(re.findall(r"[^\s,]+", found[2] or ""))


_AXIOMS = re.compile(r"'(.+)' (?:does not depend on any axioms|depends on axioms:\s*\[([^\]]*)\])")


def message_of(row: Mapping[str, Any]) -> LeanMessage:
    """Read a message.

    Raises:
        ProverError: if it is none.
    """
    try:
        place = row["pos"]
        return LeanMessage(
            str(row["severity"]), int(place["line"]), int(place["column"]), str(row["data"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProverError(f"{str(row)[:200]} is no message of Lean") from error
