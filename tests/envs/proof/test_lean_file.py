"""The file for a script, and what passes as a tactic of Lean: nothing but tactics."""

from __future__ import annotations

import pytest

from ragen_pl.envs.proof import ProverError, Theorem
from ragen_pl.envs.proof.lean_file import lean_file, tactic_lines


def test_a_file_ends_with_the_question_for_axioms() -> None:
    theorem = Theorem(
        "t", "theorem t.{u} (a : Type u)\n    : a = a := by", (), ("import A\nopen B",)
    )
    file = lean_file(theorem, ["rfl"])
    lines = file.text.split("\n")
    assert lines[:2] == ["import A", "open B"]
    assert lines[4:] == ["  (", "    rfl", "  )", "#print axioms t", ""]
    assert lines[file.by[0] - 1][file.by[1] :] == "by"
    assert lines[file.last - 1] == "#print axioms t"
    assert file.name == "t"


def test_no_tactics_are_one_that_does_nothing() -> None:
    assert "    skip\n" in lean_file(Theorem("t", "theorem t : p := by", ()), ()).text


@pytest.mark.parametrize("statement", ["def t := by", "theorem t : p", "theorem t : p := rfl"])
def test_a_statement_is_a_theorem_that_waits_for_tactics(statement: str) -> None:
    with pytest.raises(ProverError, match="T: its statement is no theorem"):
        lean_file(Theorem("T", statement, ()), ())


@pytest.mark.parametrize(
    ("tactic", "lines"),
    [
        (" intro n  ", ["intro n"]),
        ("simp -- as (usual", ["simp"]),
        ("cases h with\n| inl a => exact a\n\n| inr b => exact b", None),
        ("simp only [f, ← g] at h ⊢", None),
        ("exact ⟨fun x => {a := x}, by simpa using h'⟩", None),
        ("rw [card_eq] -- #s\nexact #s", ["rw [card_eq]", "exact #s"]),
        ("exact admitted.stopped", None),
    ],
)
def test_a_tactic_stands_in_brackets(tactic: str, lines: list[str] | None) -> None:
    expected = [line for line in tactic.split("\n") if line] if lines is None else lines
    assert tactic_lines(tactic) == ["  (", *(f"    {line}" for line in expected), "  )"]


@pytest.mark.parametrize(
    ("tactic", "reason"),
    [
        ("", "there is no tactic"),
        ("-- done", "there is no tactic"),
        ("simp)\n#eval 1\n(simp", "not allowed"),
        ("simp) theorem x : p := (q", "match"),
        ("exact (f", "match"),
        ("exact ⟨f)", "match"),
        ("simp /- ( -/", "no strings"),
        ('exact f "("', "no strings"),
        ("exact f '('", "no strings"),
        ("exact «(»", "no quoted names"),
        ("simp\tat h", "control characters"),
        ("simp\x00 at h", "control characters"),
        ("simp\u2028#eval", "control characters"),
        ("x" * 1001, "at most 1000"),
        ("sorry", "sorry is not allowed"),
        ("exact (sorry)", "sorry is not allowed"),
        ("apply?", "apply\\? is not allowed"),
        ("set_option debug.skipKernelTC true in decide", "set_option is not allowed"),
        ("decide +native", "native is not allowed"),
        ("run_tac foo", "run_tac is not allowed"),
        ("exact by_elab foo", "by_elab is not allowed"),
        ("skip #eval foo", "#eval is not allowed"),
        ("skip axiom a : False", "axiom is not allowed"),
        ("skip elab foo", "elab is not allowed"),
    ],
)
def test_what_could_end_the_brackets_or_run_code_is_refused(tactic: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tactic_lines(tactic)
