"""What the agent reads: the statement with examples, and the report on its last program."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from ragen_pl.envs.code.judge import Result
from ragen_pl.envs.code.problem import Case, Problem

_LONGEST = 300
"""Characters shown of an input, an output or an error."""
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}")
_WHAT = {
    "output": "wrong output",
    "error": "error",
    "time": "time limit exceeded",
    "skipped": "not run",
}


def short(text: str) -> str:
    """Return a text cut to what is shown, without addresses, which differ from run to run."""
    text = _ADDRESS.sub("0x...", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def statement(problem: Problem, shown: int) -> str:
    """Return the statement, with the tests that are shown as examples."""
    lines = [problem.statement]
    for case in problem.cases[:shown]:
        lines.append(f"Example: {_input(problem, case)} gives {_value(case.output)}")
    return "\n".join(lines)


def report(problem: Problem, results: Sequence[Result], shown: int) -> str:
    """Return what became of a program: the first failure among the tests that are shown in full,
    of the others only how they failed."""
    passed = sum(not result.fault for result in results)
    if passed == len(results):
        return f"Your program passed all {passed} tests."
    lines = [f"Your program passed {passed} of {len(results)} tests."]
    lines += list(_first_failure(problem, results[:shown]))
    hidden = Counter(_WHAT[result.fault] for result in results[shown:] if result.fault)
    if hidden:
        counted = ", ".join(f"{count} {what}" for what, count in sorted(hidden.items()))
        lines.append(f"Hidden tests failed: {counted}")
        errors = [result.got for result in results[shown:] if result.fault == "error"]
        if errors and len(lines) == 2:
            lines.append(short(errors[0]))
    return "\n".join(lines)


def _first_failure(problem: Problem, results: Sequence[Result]) -> Iterator[str]:
    for case, result in zip(problem.cases, results, strict=False):
        if not result.fault:
            continue
        yield f"Failed: {_input(problem, case)} gives {_value(case.output)}"
        if result.fault == "output":
            yield f"Your output: {short(result.got).strip()}"
        elif result.fault == "error":
            yield f"Your error: {short(result.got)}"
        else:
            yield f"Your program: {_WHAT[result.fault]}"
        return


def _input(problem: Problem, case: Case) -> str:
    if not problem.entry:
        return f"input {_value(case.input)}"
    given = case.input
    if isinstance(given, dict):
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    else:
        arguments = ", ".join(repr(value) for value in given)
    return short(f"{problem.entry}({arguments})")


def _value(given: Any) -> str:
    return short(given if isinstance(given, str) and "\n" not in given else _written(given))


def _written(given: Any) -> str:
    return json.dumps(given, ensure_ascii=False) if isinstance(given, str) else repr(given)
