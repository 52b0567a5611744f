"""``Proof`` as an environment, with a prover of a few lines."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Sequence

import pytest

from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.proof import Check, Proof, Theorem

THEOREMS = tuple(
    Theorem(f"File:t{n}", f"Lemma t{n} : P{n}.", ("intros.",) * n + ("auto.",)) for n in range(12)
)


class Shelf:
    """A library of twelve theorems; the number of each says how many steps it takes."""

    def theorems(self) -> Sequence[Theorem]:
        return THEOREMS


class Counting:
    """A prover that wants as many ``intros.`` as the theorem's number, then ``auto.``."""

    layout, example = "a number", "intros. or auto."

    def check(self, theorem: Theorem, script: Sequence[str]) -> Check:
        left = int(theorem.name.removeprefix("File:t"))
        for step in script[:-1]:
            left -= step == "intros."
        goals = f"{left} left"
        if not script:
            return Check("accepted", goals, proved=False)
        if script[-1] == "intros." and left:
            return Check("accepted", f"{left - 1} left", proved=False)
        if script[-1] == "auto." and not left:
            return Check("accepted", "No more goals.", proved=True)
        if script[-1] == "idtac.":
            return Check("accepted", goals, proved=False)
        slow = script[-1] == "loop."
        return Check("time" if slow else "rejected", goals, proved=False, message="no")


def make(**keys: object) -> Proof:
    env = Proof(Shelf(), Counting(), **{"split": "all", **keys})  # type: ignore[arg-type]
    env.reset(seed=0)
    return env


def at(env: Proof, number: int) -> Proof:
    theorem = THEOREMS[number]
    goals = env.prover.check(theorem, ()).goals
    env.set_state({**env.get_state(), "theorem": theorem.name, "goals": goals})
    return env


def test_rewards_are_those_of_ragen_2() -> None:
    env = at(make(), 1)
    text, reward, *_ = env.step("foo.")
    assert text == "1 left\nError: no"
    assert reward == pytest.approx(-1.1)
    assert env.step("loop.")[1] == pytest.approx(-1.1)
    text, reward, *_ = env.step("intros.")
    assert text == "0 left"
    assert reward == pytest.approx(0.9)
    text, reward, terminated, truncated, info = env.step("auto.")
    assert text == "The theorem is proved."
    assert reward == pytest.approx(10.9)
    assert (terminated, truncated, info["success"]) == (True, False, True)
    with pytest.raises(RuntimeError, match="has ended"):
        env.step("auto.")


def test_the_last_step_costs_two_more() -> None:
    env = at(make(max_actions=1), 1)
    _, reward, terminated, truncated, info = env.step("intros.")
    assert reward == pytest.approx(-1.1)
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_a_tactic_that_changes_nothing_is_rejected_if_wanted() -> None:
    assert at(make(), 1).step("idtac.")[1] == pytest.approx(-1.1)
    assert at(make(progress_only=False), 1).step("idtac.")[1] == pytest.approx(0.9)


def test_the_expert_follows_the_library() -> None:
    env = make()
    for number in range(12):
        at(env, number)
        terminated = False
        while not terminated:
            _, (tactic,) = env.expert_turn(random.Random(0), 1)
            *_, terminated, _, info = env.step(tactic)
        assert info["success"]
        env.reset(seed=number)


def test_there_is_no_expert_off_the_librarys_path() -> None:
    env = at(make(progress_only=False), 1)
    env.step("idtac.")
    with pytest.raises(ValueError, match="random_turns: 0"):
        env.expert_turn(random.Random(0), 1)


def test_the_contract_is_kept() -> None:
    check_contract(make(), "data.env")


def test_a_copy_goes_on_from_the_state() -> None:
    env = at(make(), 3)
    env.step("intros.")
    other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    other.reset(seed=5)
    other.set_state(json.loads(json.dumps(env.get_state())))
    assert other.render_text() == env.render_text() == "2 left"
    assert other.step("intros.")[0] == env.step("intros.")[0] == "1 left"
    with pytest.raises(ValueError, match="none named 'x'"):
        other.set_state({**env.get_state(), "theorem": "x"})


def test_splits_share_no_theorem() -> None:
    found = {}
    for split in ("train", "eval"):
        env = make(split=split)
        found[split] = {env.reset(seed=s) and env.get_state()["theorem"] for s in range(60)}
    assert not found["train"] & found["eval"]
    assert len(found["train"] | found["eval"]) == 12


def test_wrong_keys_are_named() -> None:
    with pytest.raises(ValueError, match="max_actions: 0"):
        make(max_actions=0)
