"""Theorems from a user's file: the fields of miniF2F, DeepSeek-Prover and RAGEN-2."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.proof import LeanStatements, Proof, Theorem
from ragen_pl.envs.proof.lean_statements import HEADER
from tests.envs.proof.test_proof import Counting


def load(path: Path, *rows: dict[str, Any], **keys: Any) -> tuple[Theorem, ...]:
    file = path / "data.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return tuple(LeanStatements(str(file), **keys).theorems())


@pytest.mark.parametrize(
    "ending", ["", " :=", " := by", " := by\n", " := sorry", " :=\nby\n  sorry\n", " := by sorry"]
)
def test_statements_end_where_tactics_begin(tmp_path: Path, ending: str) -> None:
    stated = f"theorem t (x : Nat)\n  (h : let y := x; y = 1) : x = 1{ending}"
    (theorem,) = load(tmp_path, {"formal_statement": stated})
    assert theorem.statement == "theorem t (x : Nat)\n  (h : let y := x; y = 1) : x = 1 := by"
    assert (theorem.name, theorem.script, theorem.before) == ("t", (), (HEADER,))


def test_headers_of_each_form(tmp_path: Path) -> None:
    rows = [
        {"name": "mini", "header": "import A\n", "formal_statement": "theorem a : p := by"},
        {"imports": "import B", "preamble": "open C", "formal_statement": "lemma b : p := by"},
        {"preamble": "open C", "formal_statement": "/-- words -/\n@[simp] theorem c : p"},
    ]
    mini, ragen, plain = load(tmp_path, *rows, header="import D")
    assert (mini.name, mini.before) == ("mini", ("import A",))
    assert (ragen.name, ragen.before) == ("b", ("import B\nopen C",))
    assert (plain.name, plain.before) == ("c", ("import D\nopen C",))
    assert load(tmp_path, rows[2], header="")[0].before == ("open C",)


def test_rows_of_a_split_and_each_statement_once(tmp_path: Path) -> None:
    rows = [
        {"split": "valid", "formal_statement": "theorem a : p = q := by"},
        {"split": "test", "formal_statement": "theorem b : p := by"},
        {"split": "test", "formal_statement": "theorem c :  p  := by sorry"},
    ]
    assert [each.name for each in load(tmp_path, *rows)] == ["a", "b"]
    assert [each.name for each in load(tmp_path, *rows, data_split="test")] == ["b"]
    with pytest.raises(ValueError, match="data_split: 'train' is none of test, valid"):
        load(tmp_path, *rows, data_split="train")


def test_a_json_list_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"formal_statement": "theorem a : p"}]), encoding="utf-8")
    assert LeanStatements(str(path)).theorems()[0].name == "a"


def test_a_proof_is_split_at_its_margin(tmp_path: Path) -> None:
    proof = (
        "  intro x\n"
        "  cases x with\n"
        "  | inl a =>\n"
        "    exact a\n"
        "  | inr b => exact b\n"
        "  have h : p := by\n"
        "    simp\n"
        "\n"
        "  constructor\n"
        "    <;> simp\n"
        "  · exact h\n"
    )
    (theorem,) = load(tmp_path, {"formal_statement": "theorem a : p", "formal_proof": proof})
    assert theorem.script == (
        "intro x",
        "cases x with\n| inl a =>\n  exact a\n| inr b => exact b",
        "have h : p := by\n  simp",
        "constructor\n  <;> simp",
        "· exact h",
    )


def test_there_is_no_expert_without_proofs(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"name": "File:t0", "formal_statement": "theorem a : p"}', encoding="utf-8")
    env = Proof(LeanStatements(str(path)), Counting(), split="all")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"warm_start\.iterations: 0"):
        env.expert_turn(random.Random(0), 1)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "path: .* is empty"),
        ([{"statement": "theorem a : p"}], 'line 1, has no "formal_statement"'),
        ([{"formal_statement": "def a := 1"}], 'line 1: "formal_statement" is "def a := 1"'),
        (
            [{"formal_statement": "theorem a : p"}, {"formal_statement": "theorem a : q"}],
            "line 2: another theorem has the name a already",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    tmp_path: Path, rows: list[dict[str, Any]], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        load(tmp_path, *rows)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"path: nowhere\.jsonl cannot be read"):
        LeanStatements("nowhere.jsonl")
