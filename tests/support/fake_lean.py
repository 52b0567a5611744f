#!/usr/bin/env python3
"""A small stand-in for ``lean``: it reads the files of ``Lean`` and answers as Lean 4.35 does.

A theorem ``tN`` is proved by N times ``intro x`` and then ``exact x``. A program by itself, which a
test writes where ``lean`` would be, and a function for a server.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_THEOREM = re.compile(r"^theorem (t(\d+)'?) .*:= by$")
_ERRORS = {"exact y": "Unknown identifier `y`", "nest": "unsolved goals\nx : P\n⊢ Q"}
_AXIOMS = {"assume": "magic", "forge": "magic", "hole": "sorryAx"}
_AXIOMS |= {"choose": "Classical.choice,\n Quot.sound"}
"""Axioms of tactics that prove the goal."""


@dataclass
class _Reading:
    """A file that is read line by line."""

    first: int
    found: list[dict[str, Any]] = field(default_factory=list)
    by: tuple[int, int] = (0, 0)
    left: int = 0
    axioms: str = ""
    failed: bool = False

    def say(self, severity: str, line: int, column: int, data: str) -> None:
        place = {"line": line + self.first - 1, "column": column}
        self.found.append({"severity": severity, "pos": place, "endPos": None, "data": data})

    def read(self, number: int, line: str) -> None:
        if stated := _THEOREM.match(line):
            self.by, self.left = (number, len(line) - 2), int(stated[2]) + 1
        elif line == "import Nowhere":
            self.say("error", number, 0, "unknown module prefix 'Nowhere'")
        elif line.startswith("#print axioms "):
            self.end(number, line.removeprefix("#print axioms "))
        elif line.startswith("    ") and not self.failed:
            self.tactic(number, line.strip())

    def tactic(self, number: int, tactic: str) -> None:
        _side_effect(tactic)
        if tactic in ("forge", "shout"):
            text = "'t0' does not depend on any axioms" if tactic == "forge" else "A" * (2 << 20)
            self.say("information", number, 4, text)
        if tactic == "intro x" and self.left > 1:
            self.left -= 1
        elif tactic in _AXIOMS or (tactic == "exact x" and self.left == 1):
            self.left, self.axioms = 0, _AXIOMS.get(tactic, "")
        elif tactic != "skip":
            self.say("error", number, 4, _ERRORS.get(tactic, "unknown tactic"))
            self.failed = tactic != "nest"  # after which Lean goes on

    def end(self, number: int, name: str) -> None:
        if self.left > 0 and not self.failed:
            goals = "".join(f"x : P{n}\n" for n in range(self.left - 1, 0, -1))
            self.say("error", *self.by, f"unsolved goals\n{goals}⊢ P")
        used = "sorryAx" if self.failed or self.left > 0 else self.axioms
        told = f"depends on axioms: [{used}]" if used else "does not depend on any axioms"
        self.say("information", number, 0, f"'Space.{name}' {told}")


def _side_effect(tactic: str) -> None:
    if tactic == "loop":
        time.sleep(60)
    elif tactic == "eat":
        try:
            bytearray(1 << 40)
        except MemoryError:
            os.abort()  # as Lean does
    elif tactic == "babble":
        sys.stdout.write("{babble\n")


def messages(text: str, first: int = 1) -> list[dict[str, Any]]:
    """Return Lean's messages for a file, whose first line has a number."""
    reading = _Reading(first)
    for number, line in enumerate(text.split("\n"), 1):
        reading.read(number, line)
    return reading.found


def main() -> int:
    """Answer on the standard output, a message a line, as ``lean --json`` does."""
    if sys.argv[1:] == ["--print-prefix"]:
        sys.stdout.write(f"{Path(sys.argv[0]).resolve().parent.parent}\n")
        return 0
    assert "--json" in sys.argv
    found = messages(Path(sys.argv[-1]).read_text(encoding="utf-8"))
    for message in found:
        sys.stdout.write(json.dumps(message) + "\n")
    return int(any(message["severity"] == "error" for message in found))


if __name__ == "__main__":
    sys.exit(main())
