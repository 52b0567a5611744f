"""A problem of programming: its statement, its tests and a reference solution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ragen_pl.envs.splits import Split, split_of


@dataclass(frozen=True, slots=True)
class Case:
    """One test: an input and the output that is right for it."""

    input: Any
    """The standard input as text, or the arguments: a list, or a dict by name."""
    output: Any
    """The standard output as text, or the returned value."""
    boxed: bool = False
    """Whether a list of the output alone is right, too."""


_LINES = (5, 10, 20, 40)
"""Most lines of the solutions of each difficulty but the last."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and how programs that solve it are tested.

    A program either reads its standard input and prints, or defines a function. What it must
    return is compared outside the sandbox, so that a program cannot read it; only ``check`` of
    HumanEval is code that has to run beside the program.
    """

    name: str
    """A name that no other problem of the source has."""
    statement: str
    cases: tuple[Case, ...]
    entry: str = ""
    """Name of the function; empty for a program that reads and prints."""
    before: str = ""
    """Code that is run before the program."""
    check: str = ""
    """Code that defines ``check(function)``, which raises where the function is wrong."""
    solution: str = ""
    """A program that solves the problem; empty if none is known."""
    difficulty: str = ""
    """The source's own name of it; empty if it has none."""

    @property
    def level(self) -> str:
        """The difficulty: the source's own, or a range of the known solution's lines; empty without
        either."""
        lines = sum(bool(line.strip()) for line in self.solution.splitlines())
        if self.difficulty or not lines:
            return self.difficulty
        most = next((most for most in _LINES if lines <= most), None)
        if most is None:
            return f"{_LINES[-1] + 1}+ lines"
        least = 1 + max((each for each in _LINES if each < most), default=0)
        return f"{least}-{most} lines"

    @property
    def num_tests(self) -> int:
        """Number of tests; a ``check`` is one."""
        return 1 if self.check else len(self.cases)


class Problems(ABC):
    """A source of problems. One in five is for evaluation, chosen by its name unless the source
    knows better."""

    @abstractmethod
    def all_names(self) -> Sequence[str]:
        """List all problems, in an order that is the same in every process."""

    @abstractmethod
    def problem(self, name: str) -> Problem | None:
        """Return a problem; None if it turns out to be of no use, such as without tests."""

    def names(self, split: Split) -> Sequence[str]:
        """List the problems of a split.

        Raises:
            ConfigError: if this source has no such split.
        """
        return [name for name in self.all_names() if split in ("all", split_of(name))]
