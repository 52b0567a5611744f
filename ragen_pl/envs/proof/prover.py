"""What proves: a ``Prover`` is given a theorem and a script, and says how the last step went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Verdict = Literal["accepted", "rejected", "time"]


class ProverError(RuntimeError):
    """A failure of the prover itself, which says nothing about the script."""


@dataclass(frozen=True, slots=True)
class Theorem:
    """A theorem to prove, in the place where a library states it."""

    name: str
    """Its name, after its file's name and a colon."""
    statement: str
    """The command that states it."""
    script: tuple[str, ...]
    """The library's own proof, a tactic each; empty if none is known."""
    before: tuple[str, ...] = ()
    """The commands before it in its file."""


@dataclass(frozen=True, slots=True)
class Check:
    """What a prover says of a script whose steps but the last it has accepted before."""

    verdict: Verdict
    """Of the last step; ``accepted`` for an empty script."""
    goals: str
    """What is left to prove after the steps that are accepted."""
    proved: bool
    """Whether the whole proof is checked, and rests on nothing that it may not."""
    message: str = ""
    """The error of a step that is not accepted."""


class Prover(Protocol):
    """A proof assistant.

    ``check`` is a function of its arguments: a prover may keep a process in the state of the last
    call to be quick, as ``CoqTop`` does, or check the whole script each time, as ``Lean`` and
    ``Kimina`` do. It is called from several threads, copied with its environment and sent to
    processes, so that it may hold no process itself.
    """

    @property
    def layout(self) -> str:
        """How it shows what is left to prove, for the prompt."""

    @property
    def example(self) -> str:
        """Two tactics, for the prompt."""

    def check(self, theorem: Theorem, script: Sequence[str]) -> Check:
        """Check the last step of a script.

        Raises:
            ProverError: if the prover fails, or rejects an earlier step.
        """


class Library(Protocol):
    """A source of theorems."""

    def theorems(self) -> Sequence[Theorem]:
        """List the theorems, in an order that is the same in every process.

        Raises:
            ConfigError: if they cannot be read.
        """
