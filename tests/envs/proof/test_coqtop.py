"""Coq as a prover: the library's proofs pass, and nothing that is no proof does."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.proof import Check, CoqLibrary, CoqTop, Proof, ProverError, Theorem
from ragen_pl.envs.proof import coqtop as prover
from ragen_pl.envs.proof.library import library_folder
from ragen_pl.errors import ConfigError
from tests.support.extras import need_coq

need_coq()

SWAP = Theorem(
    "Test:swap",
    "Lemma swap : forall P Q : Prop, P /\\ Q -> Q /\\ P.",
    ("intros P Q [p q].", "split.", "- exact q.", "- exact p."),
)
FALSE = Theorem("Test:absurd", "Lemma absurd : False.", (), ("Axiom magic : False.",))


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[None]:
    yield
    prover._pool().close()


def follow(theorem: Theorem, *script: str, top: CoqTop | None = None) -> Check:
    """Check a script step by step and return what is said of the last."""
    check = (top or CoqTop(seconds=1)).check(theorem, ())
    for number in range(1, len(script) + 1):
        check = (top or CoqTop(seconds=1)).check(theorem, script[:number])
    return check


def test_a_proof_step_by_step() -> None:
    assert follow(SWAP).goals.splitlines()[-1] == "  forall P Q : Prop, P /\\ Q -> Q /\\ P"
    middle = follow(SWAP, *SWAP.script[:3])
    assert (middle.verdict, middle.proved) == ("accepted", False)
    assert "goal 1 is:\n P" in middle.goals
    assert follow(SWAP, *SWAP.script) == Check("accepted", "No more goals.", proved=True)


def test_an_error_changes_nothing() -> None:
    before = follow(SWAP, "intros P Q [p q].")
    after = follow(SWAP, "intros P Q [p q].", "- exact nothing.")
    assert (after.verdict, after.goals) == ("rejected", before.goals)
    assert "nothing was not found" in after.message
    assert follow(SWAP, "intros P Q [p q].", "split.").verdict == "accepted"


@pytest.mark.parametrize(
    "tactic",
    ["Admitted.", "Qed.", "Abort.", "Axiom a : False.", "shelve.", "admit.", "exact _.", "Undo."],
)
def test_no_way_around_a_proof(tactic: str) -> None:
    assert not follow(FALSE, tactic).proved


def test_a_proof_rests_on_no_axiom_that_is_not_allowed() -> None:
    check = follow(FALSE, "exact magic.")
    assert (check.verdict, check.proved) == ("rejected", False)
    assert check.message == "the proof rests on magic"
    assert follow(FALSE, "exact magic.", top=CoqTop(axioms=["magic"])).proved


def test_a_shelved_goal_is_no_proof() -> None:
    check = follow(Theorem("Test:ex", "Lemma ex : exists n : nat, n = n.", ()), "eexists; shelve.")
    assert not check.proved


def test_a_slow_tactic_is_stopped_and_the_next_one_works() -> None:
    assert follow(SWAP, "do 1000000000 idtac.").verdict == "time"
    assert follow(SWAP, *SWAP.script).proved


def test_memory_is_limited_and_the_next_one_works() -> None:
    top = CoqTop(seconds=20, memory=700)
    big = Theorem("Test:big", "Lemma big : Nat.pow 10 9 = 0.", ())
    assert follow(big, "vm_compute.", top=top).verdict != "accepted"
    assert follow(SWAP, *SWAP.script, top=top).proved


def test_states_do_not_depend_on_what_came_before() -> None:
    top = CoqTop(processes=1)
    one = follow(SWAP, "intros.", top=top)
    follow(FALSE, "idtac.", top=top)
    assert top.check(SWAP, ("intros.",)) == one


def test_threads_share_few_processes() -> None:
    prover._pool().close()
    top = CoqTop(processes=2)
    with ThreadPoolExecutor(6) as threads:
        checks = list(threads.map(lambda _: follow(SWAP, *SWAP.script, top=top), range(12)))
    assert all(check.proved for check in checks)
    assert len(prover._pool().idle) <= 2


def test_a_theorem_that_coq_refuses_is_a_fault_of_the_prover() -> None:
    with pytest.raises(ProverError, match="Coq refuses"):
        follow(Theorem("Test:no", "Lemma no : nothing.", ()))


def test_the_library_is_proved_by_its_own_scripts() -> None:
    env = Proof(CoqLibrary(files=["Bool/BoolOrder.v", "Logic/Decidable.v"]), split="all")
    for seed in range(6):
        env.reset(seed=seed)
        ended = False
        while not ended:
            _, (tactic,) = env.expert_turn(random.Random(0), 1)
            text, _, terminated, truncated, info = env.step(tactic)
            ended = terminated or truncated
        assert info["success"], (env.get_state(), text)


def test_variables_of_a_section_are_no_axioms() -> None:
    library = CoqLibrary(files=["Arith/Between.v"])
    (theorem,) = (each for each in library.theorems() if each.name == "Arith/Between:between_le")
    assert follow(theorem, *theorem.script).proved


def test_the_contract_is_kept() -> None:
    check_contract(Proof(CoqLibrary(files=["Bool/DecBool.v"]), split="all"), "data.env")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="install Coq"):
        CoqLibrary(coqtop="no-such-coqtop")
    with pytest.raises(ConfigError, match="libcoq-stdlib"):
        CoqLibrary(files=["No/Such.v"])
    with pytest.raises(ValueError, match="longest_proof: 0"):
        CoqLibrary(longest_proof=0)
    with pytest.raises(ValueError, match="processes: 0"):
        CoqTop(processes=0)


def test_a_forked_process_has_processes_of_its_own() -> None:
    follow(SWAP)
    ours = prover._pool()
    child = os.fork()
    if child == 0:
        os._exit(0 if prover._pool() is not ours and not prover._pool().idle else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.run
def test_every_theorem_of_the_library_is_proved() -> None:
    theorems = CoqLibrary().theorems()
    assert len(theorems) > 200
    for theorem in theorems:
        assert follow(theorem, *theorem.script, top=CoqTop(seconds=9)).proved, theorem.name
    assert Path(library_folder("coqtop")).is_dir()
