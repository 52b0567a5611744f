"""``Code``: rewards, reports, limits and states, on problems written here."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Sequence

import pytest

from ragen_pl.envs.code import Case, Code, Problem, Problems
from ragen_pl.envs.code import env as code_env
from ragen_pl.envs.contract import check_contract
from ragen_pl.rollout.responses import parse_response
from tests.support.extras import need_sandbox

need_sandbox()

ADD = Problem(
    name="add",
    statement="Add two numbers.",
    cases=(Case([1, 2], 3), Case([2, 2], 4), Case([0, 0], 0), Case({"a": -1, "b": 1.5}, 0.5)),
    entry="add",
    solution="def add(a, b):\n    return a + b",
    difficulty="easy",
)
GREET = Problem(
    name="greet",
    statement="Greet the name that is read.",
    cases=(Case("Ann\n", "Hello, Ann!"), Case("Bob\n", "Hello, Bob!")),
    solution="print(f'Hello, {input()}!')",
)
CHECKED = Problem(
    name="checked",
    statement="Return one.",
    cases=(),
    entry="one",
    before="def helper():\n    return 1\n",
    check="def check(one):\n    assert one() == 1\n",
    solution="def one():\n    return helper()",
)


class Given(Problems):
    """Problems written in a test."""

    def __init__(self, *problems: Problem) -> None:
        self.given = {problem.name: problem for problem in problems}

    def all_names(self) -> Sequence[str]:
        return list(self.given)

    def problem(self, name: str) -> Problem:
        return self.given[name]


def make(problem: Problem, **keys: object) -> Code:
    env = Code(Given(problem), split="all", **keys)  # type: ignore[arg-type]
    env.reset(seed=0)
    return env


def test_the_best_share_of_an_episode_is_earned_once() -> None:
    env = make(ADD, tries=4)
    rewards = []
    for value in ("3", "0", "a * b"):
        _, reward, terminated, truncated, info = env.step(f"def add(a, b): return {value}")
        rewards.append(reward)
        assert (terminated, truncated, info["success"]) == (False, False, False)
    assert rewards == [0.25, 0.0, 0.25]
    text, reward, terminated, _, info = env.step(ADD.solution)
    assert (reward, terminated, info["success"]) == (0.5, True, True)
    assert text.endswith("Your program passed all 4 tests.")
    with pytest.raises(RuntimeError, match="has ended"):
        env.step("")


def test_the_last_try_ends_the_episode() -> None:
    env = make(ADD, tries=1)
    _, reward, terminated, truncated, info = env.step("def add(a, b): return 3")
    assert (reward, terminated, truncated, info["success"]) == (0.25, True, False, False)


def test_the_expert_solves_every_kind_of_problem() -> None:
    for problem in (ADD, GREET, CHECKED):
        env = make(problem)
        _, programs = env.expert_turn(random.Random(0), 1)
        assert env.step(programs[0])[4]["success"], problem.name


def test_a_problem_without_a_solution_has_no_expert() -> None:
    env = make(Problem("x", "Do it.", (Case("", ""),)))
    with pytest.raises(ValueError, match="warm_start"):
        env.expert_turn(random.Random(0), 1)


def test_only_the_first_tests_are_shown() -> None:
    env = make(ADD, shown_tests=1)
    assert env.render_text().splitlines() == ["Add two numbers.", "Example: add(1, 2) gives 3"]
    wrong = env.step("def add(a, b):\n    if a == 1: return 5\n    return a / 0")[0]
    assert wrong.splitlines()[2:] == [
        "Your program passed 0 of 4 tests.",
        "Failed: add(1, 2) gives 3",
        "Your output: 5",
        "Hidden tests failed: 3 error",
    ]
    hidden = env.step("def add(a, b):\n    return 3")[0]
    assert hidden.splitlines()[2:] == [
        "Your program passed 1 of 4 tests.",
        "Hidden tests failed: 3 wrong output",
    ]
    assert "-1" not in hidden


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("def add(a, b):\n    return x", "line 2: NameError: name 'x' is not defined"),
        ("def add(a, b:", "line 1: SyntaxError"),
        ("def plus(a, b): return a", "NameError: the program defines no function add"),
        ("def add(a): return a", "TypeError"),
        ("import os\nos._exit(0)", "the program ended before it returned"),
        ("import os\nos.kill(os.getpid(), 11)", "the program crashed (SIGSEGV)"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("def add(a, b): return object()", "not JSON serializable"),
        ("def add(a, b): return 'x' * 10**6", "the output is too long"),
        ("def add(a, b): return bytearray(3 << 30)", "MemoryError"),
        ("def add(a, b): return add(a, b)", "RecursionError"),
        (
            "def add(a, b):\n    x = []\n    for _ in range(300): x = [x]\n    return x",
            "Your output: [[[",
        ),
        ("import os\nos.kill(os.getppid(), 9)", "the program was stopped by the limits"),
    ],
)
def test_a_failing_program_is_told_why(program: str, error: str) -> None:
    text, reward, *_ = make(ADD).step(program)
    assert error in text
    assert reward == 0


def test_a_slow_program_costs_one_time_limit() -> None:
    env = make(ADD, seconds=0.3)
    text, *_ = env.step("def add(a, b):\n    while a != 1: pass\n    return 3")
    assert "Your program passed 1 of 4 tests." in text
    assert "Your program: time limit exceeded" in text
    assert "2 not run" in text


REPORT = '{"status": "value", "value": 3}'
CHEATS = (
    # Writes what the one that calls it would have written.
    f"for n in range(9):\n    print({REPORT!r}, flush=True)",
    f"for n in range(4):\n    open(f'/tmp/report-{{n}}', 'w').write({REPORT!r})\n"
    "import os\nos._exit(0)",
    # Equals anything, as long as it is compared here.
    "class Any(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Any(7)",
    # Changes what writes the report.
    f"import json\njson.dumps = lambda _: {REPORT!r}\ndef add(a, b): return 8",
)


@pytest.mark.parametrize("program", CHEATS)
def test_tests_cannot_be_passed_from_inside(program: str) -> None:
    assert make(ADD).step(program)[1] <= 0.25  # one of the tests is passed by 3


def test_addresses_and_long_outputs_are_not_shown() -> None:
    env = make(ADD)
    program = "def add(a, b): return repr(object()) + 'x' * 9000"
    texts = {make(ADD).step(program)[0], env.step(program)[0]}
    assert len(texts) == 1
    assert "0x..." in texts.copy().pop()
    assert len(texts.pop()) < 1000


def test_answers_in_fences_are_programs() -> None:
    env = make(ADD)
    answer = f"First I add.\n```python\n{ADD.solution}\n```\nDone."
    assert env.step(answer)[4]["success"]


def test_a_program_passes_the_answer_parser_unharmed() -> None:
    lines = ("def add(a, b):", "\tif a < b or '||' in a:", "", "\t\treturn '<b>' + a")
    program = "\n".join(lines)
    for think in (True, False):
        opening = "<think>a < b</think>" if think else ""
        text = f"{opening}<answer>\n{program}\n</answer>"
        parsed = parse_response(text, think=think, known=None, max_actions=1)
        assert (parsed.actions, parsed.is_valid) == ((program,), True)


def test_a_state_is_restored_without_running_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(ADD, tries=2)
    env.step("def add(a, b): return 3")
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    other.reset(seed=1)
    with monkeypatch.context() as patched:
        patched.setattr(code_env, "judge", lambda *_: pytest.fail("a program was run"))
        other.set_state(env.get_state())
    assert other.render_text() == env.render_text()
    assert other.step(ADD.solution)[1] == env.step(ADD.solution)[1] == 0.75
    with pytest.raises(ValueError, match="none named 'y'"):
        env.set_state({**env.get_state(), "problem": "y"})


@pytest.mark.run
def test_the_contract_is_kept() -> None:
    check_contract(Code(Given(GREET), split="all", tries=2), "data.env")


def test_splits_share_no_problem() -> None:
    many = Given(*(Problem(f"p{i}", "Do it.", (Case("", ""),)) for i in range(60)))
    train, held_out = set(many.names("train")), set(many.names("eval"))
    assert train
    assert held_out
    assert not train & held_out
    assert train | held_out == set(many.names("all"))


def test_wrong_keys_are_named() -> None:
    with pytest.raises(ValueError, match="tries: 0"):
        Code(Given(ADD), tries=0)
    with pytest.raises(ValueError, match="shown_tests: -1"):
        Code(Given(ADD), shown_tests=-1)


@pytest.mark.parametrize(
    ("solution", "difficulty", "level"),
    [
        ("", "", ""),
        ("", "hard", "hard"),
        ("a\nb", "hard", "hard"),
        ("a\n\nb\n", "", "1-5 lines"),
        ("a\n" * 6, "", "6-10 lines"),
        ("a\n" * 20, "", "11-20 lines"),
        ("a\n" * 40, "", "21-40 lines"),
        ("a\n" * 41, "", "41+ lines"),
    ],
)
def test_a_problem_without_a_difficulty_is_as_hard_as_its_solution_is_long(
    solution: str, difficulty: str, level: str
) -> None:
    problem = Problem("x", "Do it.", (Case("", ""),), solution=solution, difficulty=difficulty)
    assert make(problem).reset(seed=0)[1] == {"difficulty": level}
