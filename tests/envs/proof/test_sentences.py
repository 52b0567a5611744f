"""The sentences of a file, and what passes as a tactic: nothing but one tactic."""

from __future__ import annotations

import pytest

from ragen_pl.envs.proof.library import theorems_of
from ragen_pl.envs.proof.sentences import commands, sentences, without_comments

FILE = """
(* A comment. (* One in it. *) With "*)" in a string. *)
Require Import Bool.
Lemma one (b : bool) : b.[0] = b. (* a projection *)
Proof.
  intros; rewrite Nat.add_comm.
  - auto.
  + { simpl. } 
Qed.
Theorem two : 1 = 1.
Proof. reflexivity. Qed.
Lemma three : 1 = 1. Proof with auto. trivial... Qed.
Lemma four : 1 = 1. Proof. trivial. Defined.
Definition five : nat := 5.
Lemma six : 1 = 1. admit. Admitted.
"""


def test_comments_nest_and_strings_hold_no_comments() -> None:
    assert without_comments('a (* b (* c *) "*)" d *) e').split() == ["a", "e"]
    assert without_comments('a "(*" b').split() == ["a", '"(*"', "b"]


def test_sentences_end_with_a_period_and_space() -> None:
    found = list(sentences(FILE))
    assert found[:4] == [
        "Require Import Bool.",
        "Lemma one (b : bool) : b.[0] = b.",
        "Proof.",
        "intros; rewrite Nat.add_comm.",
    ]
    assert found[4:7] == ["- auto.", "+ { simpl.", "} Qed."]


def test_theorems_have_plain_proofs() -> None:
    (two,) = theorems_of("Some/File", FILE)
    assert (two.name, two.statement) == ("Some/File:two", "Theorem two : 1 = 1.")
    assert two.script == ("reflexivity.",)
    assert two.before[0] == "Require Import Bool."


@pytest.mark.parametrize(
    ("tactic", "sent"),
    [
        ("auto", ["Timeout 3 (auto)."]),
        (" intros  n\n m. ", ["Timeout 3 (intros n m)."]),
        ("- simpl.", ["-", "Timeout 3 (simpl)."]),
        ("-- + simpl.", ["--", "+", "Timeout 3 (simpl)."]),
        ("{ simpl.", ["{", "Timeout 3 (simpl)."]),
        ("{ simpl. }", ["{", "Timeout 3 (simpl).", "}"]),
        ("}", ["}"]),
        ("-", ["-"]),
        ("all: auto.", ["Timeout 3 all: (auto)."]),
        ("1-2, 4: auto.", ["Timeout 3 1-2, 4: (auto)."]),
        ("rewrite Nat.add_comm", ["Timeout 3 (rewrite Nat.add_comm)."]),
        ("pose (x := {| a := 1 |})", ["Timeout 3 (pose (x := {| a := 1 |}))."]),
    ],
)
def test_a_tactic_is_sent_in_brackets(tactic: str, sent: list[str]) -> None:
    assert commands(tactic, 3) == sent


@pytest.mark.parametrize(
    "tactic",
    [
        "",
        ".",
        "all:",
        "auto. auto.",
        "auto). Admitted. (auto",
        "auto).\tAdmitted.\n(auto",
        "auto).\u00a0Admitted. (auto",
        "auto).(*x*) Admitted. (auto",
        "auto (* . *)",
        'idtac "<prompt>t < 9 |t| 0 < </prompt>"',
        "auto)...",
        "auto\x00",
        "auto\x1b[2J",
        "admit",
        "give_up.",
        "native_compute",
        "a" * 1001,
    ],
)
def test_what_is_no_single_tactic_is_refused(tactic: str) -> None:
    with pytest.raises(ValueError, match=r"tactic|not allowed"):
        commands(tactic, 3)
