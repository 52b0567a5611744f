"""``Code``: write a program, see which tests it fails, and repair it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ragen_pl.envs.base import (
    NoExpertError,
    TextEnv,
    hash_without,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.code import text
from ragen_pl.envs.code.fences import program_in
from ragen_pl.envs.code.judge import judge
from ragen_pl.envs.code.problem import Problem, Problems
from ragen_pl.envs.code.sources import CodeIO
from ragen_pl.envs.pieces import frequent_pieces
from ragen_pl.envs.sandbox import require_sandbox
from ragen_pl.envs.splits import Split

_LONGEST_PROGRAM = 20_000
_MOST_TRIED = 50
_SAMPLED = 20
"""Problems that the vocabulary is taken from."""
_MEBIBYTE = 1 << 20


class Code(TextEnv):
    """A programming problem: the answer is a Python program, and what it fails is the next
    observation.

    Programs run in the sandbox alone, each test in a process of its own. A program earns the share
    of the tests it passes as far as that is more than any program before it did, so that a whole
    episode earns the best share (RAGEN-2's reward for DeepCoder, where there is one try). Passing
    all tests is success and ends the episode, as does the last try.

    The first tests are shown as examples, and in full where a program fails them; of the others the
    agent sees only how they failed.

    Args:
        problems: The source of problems; null for ``CodeIO``, reasoning-gym's.
        tries: Programs that an episode allows; 1 in RAGEN-2.
        shown_tests: Tests that the agent sees.
        seconds: Time of one test.
        memory: Mebibytes of address space of a program.
        repeat_statement: Whether every observation has the statement; false shows it once, which
            takes fewer tokens.
        split: ``train`` or ``eval`` for disjoint problems; ``all`` for all of them.
    """

    name = "code"
    actions: tuple[str, ...] | None = None

    def __init__(
        self,
        problems: Problems | None = None,
        tries: int = 3,
        shown_tests: int = 2,
        seconds: float = 3.0,
        memory: int = 512,
        repeat_statement: bool = True,
        split: Split = "train",
    ) -> None:
        for key, value in (("tries", tries), ("seconds", seconds), ("memory", memory)):
            if value <= 0:
                raise ValueError(f"{key}: {value} is not positive")
        if shown_tests < 0:
            raise ValueError(f"shown_tests: {shown_tests} is negative")
        self.split: Split = one_of("split", split, Split)
        require_sandbox()
        self.problems = CodeIO() if problems is None else problems
        self.max_actions = tries
        self.shown_tests, self.seconds, self.memory = shown_tests, seconds, memory
        self.repeat_statement = repeat_statement
        self._names = tuple(self.problems.names(self.split))
        if not self._names:
            raise ValueError(f"split: there are no problems in {split!r}; use split: all")
        self._problem_name = ""
        self._programs: tuple[str, ...] = ()
        self._report = ""
        self._best = 0.0

    @property
    def instruction(self) -> str:
        """What an answer must be, and how many tries it has."""
        task = "Solve the problem. Answer with a Python program, standard library only."
        if self.max_actions == 1:
            return task
        return (
            f"{task}\nTests are run, and a program that fails may be repaired; there are "
            f"{self.max_actions} tries. Answer with the whole program each time."
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Pose the problem that the seed decides; nothing is random after it."""
        self._problem_name = self._chosen(resolve_seed(self, seed))
        self._programs, self._report, self._best = (), "", 0.0
        return self.render_text(), {"difficulty": self._problem.level}

    def _chosen(self, seed: int) -> str:
        rng = random.Random(f"code {seed}")
        for _ in range(_MOST_TRIED):
            name = self._names[rng.randrange(len(self._names))]
            if self.problems.problem(name) is not None:
                return name
        raise ValueError(f"problems: {_MOST_TRIED} of them in a row have no tests")

    @property
    def _problem(self) -> Problem:
        problem = self.problems.problem(self._problem_name)
        assert problem is not None
        return problem

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Test a program; one that passes everything and the last try end the episode."""
        refuse_after_end(self, self._has_ended)
        problem, program = self._problem, program_in(action)
        if len(program) > _LONGEST_PROGRAM:
            share = 0.0
            self._report = f"Your program has more than {_LONGEST_PROGRAM} characters."
        else:
            results = judge(problem, program, self.seconds, self.memory * _MEBIBYTE)
            share = sum(not result.fault for result in results) / len(results)
            self._report = text.report(problem, results, self.shown_tests)
        self._programs = (*self._programs, program[:_LONGEST_PROGRAM])
        reward = max(0.0, share - self._best)
        self._best = max(self._best, share)
        info = {"success": share == 1.0, "share": share}
        return self.render_text(), reward, self._has_ended, False, info

    @property
    def _has_ended(self) -> bool:
        return self._best == 1.0 or len(self._programs) >= self.max_actions

    def render_text(self) -> str:
        """Return the statement and the report on the last program."""
        if not self._problem_name:
            return ""
        stated = text.statement(self._problem, self.shown_tests)
        if not self._programs:
            return stated
        return f"{stated}\n{self._report}" if self.repeat_statement else self._report

    def get_state(self) -> dict[str, Any]:
        """Return the problem's name, the programs so far, the last report and the best share."""
        return {
            "problem": self._problem_name,
            "programs": list(self._programs),
            "report": self._report,
            "best": self._best,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned; nothing is run.

        Raises:
            ValueError: if the source has no such problem.
        """
        known: Sequence[str] = self.problems.names("eval" if self.split == "eval" else "all")
        if state["problem"] and state["problem"] not in known:
            raise ValueError(f"problem: this source has none named {state['problem']!r}")
        self._problem_name = state["problem"]
        self._programs = tuple(state["programs"])
        self._report, self._best = state["report"], state["best"]

    def anchor_key(self) -> str:
        """Return a key of what the agent sees."""
        return hash_without({"problem": self._problem_name, "report": self._report})

    def start_key(self) -> str:
        """Return a key of the problem: several seeds may pose the same."""
        return hash_without({"problem": self._problem_name})

    @property
    def has_expert(self) -> bool:
        """Whether any problem comes with a solution."""
        found = map(self.problems.problem, self._names)
        return any(problem is not None and bool(problem.solution) for problem in found)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return the reference solution, without a thought.

        Raises:
            NoExpertError: if the problem comes without one.
        """
        if not self._problem.solution:
            raise NoExpertError(
                f"the problem {self._problem_name} comes without a solution: without an expert, "
                "set data.warm_start.iterations to 0"
            )
        return "", (self._problem.solution,)

    def vocabulary(self) -> Iterator[str]:
        """List lines and words of sampled problems and solutions, and of the reports."""
        yield from self.instruction.splitlines(keepends=True)
        yield from ("Example: ", " gives ", "Your program passed ", " tests.", "Failed: ")
        yield from ("Your output: ", "Your error: ", "Hidden tests failed: ", " wrong output")
        yield from ("\n    ", "\n        ", "\n            ", "    return ", "def ")
        yield from _pieces(self.problems, self.shown_tests)


def _pieces(problems: Problems, shown: int) -> list[str]:
    """Return frequent lines and words of problems, which all splits of a source share."""
    names = problems.names("eval")[:_SAMPLED]
    found = (problems.problem(name) for name in names)
    return frequent_pieces(
        f"{text.statement(problem, shown)}\n{problem.solution}"
        for problem in found
        if problem is not None
    )
