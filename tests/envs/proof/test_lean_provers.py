"""``Lean`` and ``Kimina`` with a stand-in for Lean: a program in the sandbox, a server here."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.proof import (
    Check,
    Kimina,
    Lean,
    LeanStatements,
    Proof,
    Prover,
    ProverError,
    Theorem,
)
from ragen_pl.envs.proof import lean as installed
from ragen_pl.envs.proof.lean_prover import _accepted
from ragen_pl.errors import ConfigError
from tests.support import fake_lean
from tests.support.chat_server import Answer, Asked, serving
from tests.support.extras import need_sandbox

HEADER = "import Mathlib\nopen Nat"
ONE = Theorem("one", "theorem t1 (p : Prop) : P := by", (), (HEADER,))


def executable(path: Path, text: str) -> str:
    """Write a program that the interpreter of this process runs, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{Path(sys.executable).resolve()}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The stand-in, as the executable of a toolchain."""
    need_sandbox()
    source = Path(fake_lean.__file__).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("toolchain")
    folder.chmod(0o755)  # another user runs it, where root runs the tests
    return executable(folder / "bin" / "lean", source)


def answered(body: dict[str, Any]) -> Answer:
    """Answer as a Kimina server does, which counts lines without the imports."""
    (asked,) = body.get("snippets") or body["codes"]
    name = "id" if "snippets" in body else "custom_id"
    text = asked["code" if "snippets" in body else "proof"]
    if "loop" in text:
        result: dict[str, Any] = {"error": "Lean REPL command timed out in 60 seconds"}
    elif "eat" in text:
        result = {"response": {"message": "Could not parse JSON"}}
    else:
        imports = sum(line.startswith("import ") for line in text.split("\n"))
        result = {"response": {"env": 1, "messages": fake_lean.messages(text, 1 - imports)}}
    return Answer({"results": [{name: asked[name], "time": 0.1, **result}]})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[Asked]]]:
    with serving(answered) as (url, asked):
        yield url.removesuffix("/v1"), asked


@pytest.fixture(params=["lean", "check", "verify"])
def prover(request: pytest.FixtureRequest) -> Prover:
    """Each prover in turn."""
    if request.param == "lean":
        return Lean(request.getfixturevalue("command"), seconds=20)
    return Kimina(request.getfixturevalue("server")[0], route=request.param)


def test_a_proof_step_by_step(prover: Prover) -> None:
    assert prover.check(ONE, ()) == Check("accepted", "x : P1\n⊢ P", proved=False)
    middle = prover.check(ONE, ("intro x",))
    assert middle == Check("accepted", "⊢ P", proved=False)
    proof = ("intro x", "exact x")
    assert prover.check(ONE, proof) == Check("accepted", "no goals", proved=True)


def test_an_error_changes_nothing(prover: Prover) -> None:
    after = prover.check(ONE, ("intro x", "exact y"))
    assert after == Check("rejected", "⊢ P", proved=False, message="Unknown identifier `y`")
    refused = prover.check(ONE, ("intro x", "sorry"))
    assert (refused.goals, refused.message) == ("⊢ P", "sorry is not allowed")


def test_goals_left_within_a_step_are_an_error(prover: Prover) -> None:
    check = prover.check(ONE, ("nest",))
    assert (check.verdict, check.proved) == ("rejected", False)
    assert check.message == "unsolved goals\nx : P\n⊢ Q"


@pytest.mark.parametrize(("tactic", "axiom"), [("assume", "magic"), ("hole", "sorryAx")])
def test_a_proof_rests_on_standard_axioms_alone(prover: Prover, tactic: str, axiom: str) -> None:
    check = prover.check(ONE, (tactic,))
    assert (check.verdict, check.proved) == ("rejected", False)
    assert check.message == f"the proof rests on {axiom}"
    assert prover.check(ONE, ("choose",)).proved


def test_a_message_of_a_tactic_is_not_the_answer_about_axioms(prover: Prover) -> None:
    theorem = Theorem("zero", "theorem t0 (p : Prop) : P := by", ())
    assert prover.check(theorem, ("forge",)).message == "the proof rests on magic"


def test_axioms_may_be_allowed(server: tuple[str, list[Asked]]) -> None:
    assert Kimina(server[0], axioms=("magic",)).check(ONE, ("assume",)).proved


def test_a_name_may_have_a_prime(prover: Prover) -> None:
    theorem = Theorem("prime", "theorem t0' (p : Prop) : P := by", ())
    assert prover.check(theorem, ("exact x",)).proved


def test_an_earlier_step_that_fails_is_no_fault_of_the_last(prover: Prover) -> None:
    with pytest.raises(ProverError, match=r"one: Lean refuses .* rejected: unknown tactic"):
        prover.check(ONE, ("foo", "exact x"))
    lost = Theorem("lost", ONE.statement, (), ("import Nowhere",))
    with pytest.raises(ProverError, match="unknown module prefix 'Nowhere'"):
        prover.check(lost, ())


def test_a_slow_step_is_told_from_a_wrong_one(command: str, server: tuple[str, Any]) -> None:
    check = Lean(command, seconds=1).check(ONE, ("loop",))
    assert check == Check("time", "x : P1\n⊢ P", proved=False, message="1 seconds have passed")
    check = Kimina(server[0]).check(ONE, ("loop",))
    assert (check.verdict, check.goals) == ("time", "x : P1\n⊢ P")


def test_what_ends_lean_is_a_wrong_step(command: str, server: tuple[str, Any]) -> None:
    lean = Lean(command, seconds=20)
    assert "as where it takes too much memory" in lean.check(ONE, ("eat",)).message
    assert lean.check(ONE, ("shout",)).message == "Lean has written more than 1048576 bytes"
    assert Kimina(server[0]).check(ONE, ("eat",)).message == "Could not parse JSON"
    with pytest.raises(ProverError, match="no JSON"):
        lean.check(ONE, ("babble",))


def test_what_was_accepted_is_checked_once(server: tuple[str, list[Asked]]) -> None:
    url, asked = server
    _accepted.cache_clear()
    before = len(asked)
    for _ in range(3):
        Kimina(url).check(ONE, ())
        Kimina(url).check(ONE, ("intro x",))
    assert len(asked) == before + 2


def test_the_forms_of_a_servers_questions(
    server: tuple[str, list[Asked]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server
    monkeypatch.setenv("KIMINA_API_KEY", "secret")
    _accepted.cache_clear()
    Kimina(url, seconds=7).check(ONE, ())
    (snippet,) = asked[-1].body["snippets"]
    assert (asked[-1].path, asked[-1].body["timeout"]) == ("/api/check", 7)
    assert snippet["code"].startswith("import Mathlib\nopen Nat\ntheorem t1")
    assert asked[-1].authorization == "Bearer secret"
    Kimina(f"{url}/", route="verify").check(ONE, ())
    assert asked[-1].path == "/verify"
    assert asked[-1].body["codes"][0]["proof"] == snippet["code"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("no key", status=401), "answers 401: no key: start the Kimina server"),
        (Answer("<html>"), "answers with what is no JSON"),
        (Answer({"detail": "?"}), "does not answer as a Kimina server"),
        (Answer({"results": [{"response": {"messages": [{"data": 1}]}}]}), "no message of Lean"),
    ],
)
def test_a_server_that_does_not_answer_is_told(answer: Answer, told: str) -> None:
    with serving(lambda _: answer) as (url, _), pytest.raises(ProverError, match=told):
        Kimina(url.removesuffix("/v1")).check(ONE, ())


def test_a_busy_server_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    answers = [Answer("no free process", status=429), Answer("", status=503)]
    with serving(lambda body: answers.pop() if answers else answered(body)) as (url, asked):
        assert Kimina(url.removesuffix("/v1")).check(ONE, ()).verdict == "accepted"
        assert len(asked) == 3
    with pytest.raises(ProverError, match=r"cannot be reached .* set url, route"):
        Kimina(url.removesuffix("/v1"), seconds=8).check(ONE, ())


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def statements(path: Path) -> LeanStatements:
    rows = [
        {
            "name": f"name_{n}",
            "formal_statement": f"theorem t{n} (p : Prop) : P := by sorry",
            "formal_proof": ["intro x"] * n + ["exact x"],
        }
        for n in range(3)
    ]
    unlike = [{**row, "header": f"open Space{n}"} for n, row in enumerate(rows)]
    return LeanStatements(write(path / "data.jsonl", *unlike))


def test_the_contract_is_kept(prover: Prover, tmp_path: Path) -> None:
    env = Proof(statements(tmp_path), prover, split="all")
    assert "the goal after ⊢" in env.instruction
    assert env.actions_text == "one tactic, such as intro n or exact h"
    check_contract(env, "data.env")


def test_copies_go_on_from_the_state(prover: Prover, tmp_path: Path) -> None:
    env = Proof(statements(tmp_path), prover, split="all")
    seed = next(s for s in range(20) if env.reset(seed=s)[1]["difficulty"] == "2")
    env.reset(seed=seed)
    env.step("intro x")
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    *_, terminated, _, info = other.step("exact x")
    assert terminated
    assert info["success"]


def lake(folder: Path, monkeypatch: pytest.MonkeyPatch, body: Callable[[], str]) -> None:
    """Put a stand-in for ``lake`` and its ``printenv`` first on the path."""
    executable(folder / "lake", body())
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_project_gives_its_libraries(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, built = tmp_path / "project", tmp_path / "project" / ".lake" / "lib"
    built.mkdir(parents=True)
    tmp_path.chmod(0o755)
    (project / "lakefile.toml").write_text("", encoding="utf-8")
    paths = f"./.lake/lib:{tmp_path}/missing"
    run = f"import os, sys\nassert sys.argv[1] == 'env'\nos.environ['LEAN_PATH'] = {paths!r}\n"
    lake(tmp_path / "bin", monkeypatch, lambda: f"{run}os.execvp(sys.argv[2], sys.argv[2:])\n")
    runner = installed._runner(command, str(project))
    assert runner.folders == (Path(command).parent.parent, built)
    assert runner.variables == {"LEAN_PATH": str(built)}
    assert Lean(command, project=str(project), seconds=20).check(ONE, ("choose",)).proved


def test_what_is_missing_is_named(command: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="install Lean 4 with elan"):
        Lean("no-such-lean")
    with pytest.raises(ConfigError, match=r"has no lakefile.toml and no lakefile.lean"):
        Lean(command, project=str(tmp_path))
    with pytest.raises(ValueError, match="seconds: 0"):
        Lean(command, seconds=0)
    with pytest.raises(ConfigError, match="it does not run in the sandbox"):
        Lean(command, memory=1)
    broken = executable(tmp_path / "bin" / "lean", "print('/nowhere')")
    with pytest.raises(ConfigError, match="it does not run in the sandbox"):
        Lean(broken)
    with pytest.raises(ValueError, match="url: 'localhost'"):
        Kimina("localhost")
    with pytest.raises(ValueError, match="did you mean 'verify'"):
        Kimina(route="verfy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds: 0"):
        Kimina(seconds=0)
