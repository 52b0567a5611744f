"""The verdict on a program: the sandbox runs it, and its outputs are compared here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ragen_pl.envs.code.problem import Case, Problem
from ragen_pl.envs.sandbox import Limits, run_python

Fault = Literal["", "output", "error", "time", "skipped"]
_START = 10.0
"""Seconds for the start of the sandbox on a busy machine."""
_OUTPUT = 1 << 23
"""Bytes of all reports together, which are ASCII."""
_USUAL = 100_000
"""Characters that the report on any test may have."""
_FRAME = 64
"""Characters of a report besides the value, and more."""
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test."""

    fault: Fault
    """Empty if it was passed; ``skipped`` after a test that took too long."""
    got: str = ""
    """The output as text, or the error."""


def judge(problem: Problem, program: str, seconds: float, memory: int) -> tuple[Result, ...]:
    """Run a program on all tests of a problem.

    Args:
        problem: The problem.
        program: The program, which need not even parse.
        seconds: Time of one test.
        memory: Bytes of address space.

    Raises:
        ConfigError: if there is no sandbox.
        SandboxError: if the sandbox fails.
    """
    inputs = [None] if problem.check else [case.input for case in problem.cases]
    job = {
        "program": program,
        "entry": problem.entry,
        "before": problem.before,
        "check": problem.check,
        "inputs": inputs,
        "seconds": seconds,
    }
    longest = _longest_report(problem)
    job["longest"] = longest
    limits = Limits(
        seconds=_START + 1.5 * seconds * len(inputs),
        cpu_seconds=math.ceil(_START + seconds),
        memory=memory,
        output=max(_OUTPUT, len(inputs) * longest),
    )
    outcome = run_python(inside("run_tests.py"), json.dumps(job), limits)
    results = list(_results(problem, outcome.stdout))
    if not results:  # the program put an end to the one that calls it
        results = [Result("error", "the program was stopped by the limits of the sandbox")]
    missing = len(inputs) - len(results)
    return (*results, *(Result("skipped") for _ in range(missing)))


def _longest_report(problem: Problem) -> int:
    """Return how many characters the report on a test may have: twice those of the longest right
    output, since a right one may be written at more length, as far as there is room."""
    longest = max((output_length(case) for case in problem.cases), default=0)
    return max(_USUAL, min(_FRAME + 2 * longest, _OUTPUT // max(1, problem.num_tests)))


def longest_output(tests: int) -> int:
    """Return how many characters of JSON an output may have where there are so many tests."""
    return max(_USUAL, _OUTPUT // max(1, tests)) - _FRAME


def output_length(case: Case) -> int:
    """Return how many characters of JSON the right output of a test has."""
    return len(json.dumps([case.output] if case.boxed else case.output))


@lru_cache(maxsize=4)
def inside(name: str) -> str:
    """Return the text of a program for the sandbox that stands beside this file."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _results(problem: Problem, reports: str) -> Iterator[Result]:
    for number, line in enumerate(reports.splitlines()[: problem.num_tests]):
        try:
            report: Any = json.loads(line)
        except (ValueError, RecursionError):  # cut off, or written by the program
            return
        if not isinstance(report, dict):
            return
        case = problem.cases[number] if problem.cases else None
        try:
            yield _result(problem, case, report)
        except RecursionError:
            yield Result("error", "the output is nested too deeply")


def _result(problem: Problem, case: Case | None, report: Mapping[str, Any]) -> Result:
    if report.get("status") == "time":
        return Result("time")
    if report.get("status") != "value":
        return Result("error", str(report.get("error", "")))
    value = report.get("value")
    if case is None:
        return Result("" if value is True else "error")
    if problem.entry:
        right = same_value(value, case.output) or (case.boxed and same_value(value, [case.output]))
        return Result("" if right else "output", json.dumps(value))
    right = same_text(str(value), str(case.output))
    return Result("" if right else "output", str(value))


def same_value(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; numbers may differ by a millionth of their size."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return same_number(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)


def same_number(one: float, other: float) -> bool:
    """Return whether two numbers are equal: integers exactly, others up to a millionth."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    try:
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    except OverflowError:  # an integer that no float holds
        return False


def same_text(one: str, other: str) -> bool:
    """Return whether two outputs are equal, up to white space at the ends of lines and of the text.

    Lines that differ must have equal words, where numbers that are no integers may differ by a
    millionth.
    """
    lines, others = (text.strip().splitlines() for text in (one, other))
    return len(lines) == len(others) and all(map(_same_line, lines, others))


def _same_line(one: str, other: str) -> bool:
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(map(_same_word, words, others))


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        numbers = float(one), float(other)
    except ValueError:
        return False
    return ("." in other or "e" in other.lower()) and same_number(*numbers)
