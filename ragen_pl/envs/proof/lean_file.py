"""The file of Lean that a script is checked in: header, statement, tactics, and a last command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ragen_pl.envs.proof.prover import ProverError, Theorem
from ragen_pl.envs.proof.tactic_text import refuse_unfit

DECLARATION = re.compile(r"^(?:[\w@\[\], ]*\s)?(?:theorem|lemma)\s+([^\s({\[:⦃]+)", re.MULTILINE)
"""The beginning of a statement, and the theorem's name."""
_COMMENT = re.compile(r"--.*")
_OPAQUE = re.compile(r"[\"«»]|/-|-/|'[()\[\]{}⟨⟩]'")
"""What could hide a bracket: strings, quoted names, comments of several lines, characters."""
_BRACKETS = {"(": ")", "[": "]", "{": "}", "⟨": "⟩"}
_REFUSED = re.compile(
    r"(?<!\w)(sorry|admit|stop|apply\?|set_option|native_decide|native|bv_decide|bv_check|polyrith|"
    r"run_\w+|by_elab|include_str|dbg_\w+|unsafe|implemented_by|macro|macro_rules|syntax|elab|"
    r"elab_rules|notation|initialize|builtin_initialize|simproc|axiom|#\w\w+)(?![\w'])"
)
"""Holes, options (one switches the kernel's check off), and what runs code or declares some."""


@dataclass(frozen=True, slots=True)
class LeanFile:
    """A file that ends with ``#print axioms`` of its theorem, and places in it."""

    text: str
    name: str
    """The theorem's, as it is declared."""
    by: tuple[int, int]
    """Line, from 1, and column, from 0, of the word that the tactics follow."""
    last: int
    """Line of the last command."""


def lean_file(theorem: Theorem, script: Sequence[str]) -> LeanFile:
    """Return the file for a script.

    Raises:
        ValueError: if a step is no single tactic, or one that is not allowed; the message, for the
            agent, says why.
        ProverError: if the statement is none of Lean.
    """
    declared = DECLARATION.search(theorem.statement)
    if declared is None or not theorem.statement.endswith(":= by"):
        raise ProverError(f"{theorem.name}: its statement is no theorem that ends with := by")
    name = declared[1].rstrip(".")  # before universes, as in name.{u}
    head = "\n".join((*theorem.before, theorem.statement)).split("\n")
    lines = [*head, *(line for step in script or ("skip",) for line in tactic_lines(step))]
    text = "\n".join([*lines, f"#print axioms {name}", ""])
    return LeanFile(text, name, (len(head), len(head[-1]) - len("by")), len(lines) + 1)


def tactic_lines(tactic: str) -> list[str]:
    """Return the lines for a tactic, which stands in brackets of its own.

    Lean reads nothing but tactics there, and every text that could close the brackets is refused:
    no command passes.

    Raises:
        ValueError: if the text is no tactic, or one that is not allowed; the message says why.
    """
    lines = [_COMMENT.sub("", line).rstrip() for line in tactic.strip().split("\n")]
    lines = [line for line in lines if line]
    text = "\n".join(lines)
    if not text:
        raise ValueError("there is no tactic")
    if _OPAQUE.search(text):
        raise ValueError("a tactic has no strings, no quoted names and no comments in /- -/")
    refuse_unfit(text, _REFUSED)
    if not _is_closed(text):
        raise ValueError("the brackets of a tactic have to match")
    return ["  (", *(f"    {line}" for line in lines), "  )"]


def _is_closed(text: str) -> bool:
    """Return whether every bracket has its partner."""
    awaited = []
    for character in text:
        if character in _BRACKETS:
            awaited.append(_BRACKETS[character])
        elif character in _BRACKETS.values() and (not awaited or awaited.pop() != character):
            return False
    return not awaited
