"""``LeanStatements``: theorems of Lean from a user's file, such as miniF2F's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.proof.lean_file import DECLARATION
from ragen_pl.envs.proof.prover import Theorem

HEADER = """\
import Mathlib
import Aesop
set_option maxHeartbeats 400000
open BigOperators Real Nat Topology Rat"""
"""The header of DeepSeek-Prover's files."""
_PROOF = re.compile(r"\s*:=\s*(?:by\b)?\s*(?:sorry\b)?\s*$")
_CONTINUES = ("|", "<;>", "_ ", ")", "]", "⟩", "--")
"""Beginnings of lines that go on with the tactic before them."""


class LeanStatements:
    """Theorems of a file, JSON lines or a JSON list, in the form of miniF2F's and others.

    ``formal_statement`` is the theorem, with or without ``:= by`` and ``sorry``. Optional are
    ``name``, ``split``, ``header`` (DeepSeek-Prover) or ``imports`` and ``preamble`` (RAGEN-2), and
    a proof to imitate: ``formal_proof``, a text or a list of tactics. A statement that another name
    repeats is left out, so that splits share none.

    Args:
        path: Path of the file.
        data_split: The rows to take, by their ``split``, such as valid; null for all.
        header: What stands before a statement whose row has no header.
    """

    def __init__(self, path: str, data_split: str | None = None, header: str = HEADER) -> None:
        self.path, self.data_split, self.header = path, data_split, header
        self.theorems()

    def theorems(self) -> Sequence[Theorem]:
        """List the theorems, in the order of the file."""
        return _theorems(self.path, self.data_split, self.header)


@lru_cache(maxsize=8)
def _theorems(path: str, split: str | None, header: str) -> tuple[Theorem, ...]:
    found: dict[str, Theorem] = {}
    stated: set[str] = set()
    splits: set[str] = set()
    for row in read_rows(path, "path"):
        splits.add(str(row.get("split")))
        if split is not None and row.get("split") != split:
            continue
        theorem, goal = _theorem(row, header)
        if goal in stated:
            continue
        stated.add(goal)
        if theorem.name in found:
            raise ValueError(f"{row.place}: another theorem has the name {theorem.name} already")
        found[theorem.name] = theorem
    if not found:
        raise ValueError(f"data_split: {split!r} is none of {', '.join(sorted(splits))}")
    return tuple(found.values())


def _theorem(row: DataRow, header: str) -> tuple[Theorem, str]:
    """Return the theorem of a row, and its statement without the name."""
    stated = row.get("formal_statement")
    if not isinstance(stated, str) or (name := DECLARATION.search(stated)) is None:
        raise row.unfit("formal_statement", "a theorem of Lean")
    statement = _PROOF.sub("", stated.strip())
    given = str(row.get("header") or "").strip()
    if not given:
        imports = str(row.get("imports") or header).strip()
        given = "\n".join(
            part for part in (imports, str(row.get("preamble") or "").strip()) if part
        )
    goal = " ".join(f"{given} {statement[name.end() :]}".split())
    proof = row.get("formal_proof") or []
    script = tuple(_tactics(proof if isinstance(proof, str) else row.texts("formal_proof")))
    before = (given,) if given else ()
    return Theorem(str(row.get("name") or name[1]), f"{statement} := by", script, before), goal


def _tactics(proof: str | Sequence[str]) -> Iterator[str]:
    """Yield the tactics of a proof: a list, or a text whose lines at the margin begin one each."""
    if not isinstance(proof, str):
        yield from proof
        return
    lines = [line.rstrip() for line in proof.removeprefix(":=").strip("\n").split("\n")]
    lines = [line for line in lines if line and line.strip() not in ("by", "```")]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    tactic: list[str] = []
    for line in (line[margin:] for line in lines):
        if tactic and not line.startswith((" ", *_CONTINUES)):
            yield "\n".join(tactic)
            tactic = []
        tactic.append(line)
    if tactic:
        yield "\n".join(tactic)
