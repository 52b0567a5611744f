"""Environments with gymnasium's interface, in words, and the state by replay."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import pytest

from ragen_pl.envs.adapters import GymText
from ragen_pl.envs.contract import check_contract


class Echo:
    """Says what it is told; the third word ends it. Its rewards and info come from the words."""

    def __init__(self, prize: float = 1.0) -> None:
        self.prize = prize

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.said, self.seed = 0, seed
        return f"start {seed}", {"difficulty": seed % 2}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.said += 1
        shown: Any = object() if action == "object" else action
        return shown, self.prize, self.said == 3, False, {"won": action == "win"}


def echo(**arguments: Any) -> GymText:
    return GymText(f"{__name__}.Echo", "Say something.", **arguments)


def test_texts_go_in_and_come_out() -> None:
    env = echo(split="all")
    text, info = env.reset(seed=3)
    assert (text, info, env.name, env.actions) == ("start 3", {"difficulty": "1"}, "echo", None)
    assert env.step("hello")[:4] == ("hello", 1.0, False, False)
    env.step("hello")
    assert env.step("bye") == ("bye", 1.0, True, False, {"success": True})


@pytest.mark.parametrize(
    ("arguments", "last", "success"),
    [
        ({}, "bye", True),
        ({"arguments": {"prize": 0.5}}, "bye", False),
        ({"arguments": {"prize": 0.5}, "success_reward": 0.5}, "bye", True),
        ({"success_key": "won"}, "bye", False),
        ({"success_key": "won"}, "win", True),
    ],
)
def test_success_is_the_last_reward_or_an_entry_of_info(
    arguments: dict[str, Any], last: str, success: bool
) -> None:
    env = echo(split="all", **arguments)
    env.reset(seed=0)
    assert not env.step("win")[4]["success"]  # the episode goes on
    env.step("win")
    assert env.step(last)[4]["success"] is success


def test_the_limit_of_actions_truncates() -> None:
    env = echo(split="all", max_actions=2)
    env.reset(seed=0)
    assert env.step("a")[2:4] == (False, False)
    assert env.step("b")[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="the episode has ended"):
        env.step("c")


def test_a_state_is_the_seeds_and_the_moves() -> None:
    env = echo(split="all")
    env.reset(seed=4, options={"noise_seed": 9})
    assert env.get_state() == {"seed": 4, "noise_seed": None, "moves": []}
    env.step("a")
    state = env.get_state()
    assert state == {"seed": 4, "noise_seed": 9, "moves": ["a"]}
    env.reset(seed=0)
    env.set_state(state)
    assert (env.render_text(), env.get_state()) == ("a", state)


def test_numbers_get_names_and_noise() -> None:
    env = GymText("Blackjack-v1", "Hit or stick.", actions=("stick", "hit"), split="all")
    text, _ = env.reset(seed=0)
    assert text.startswith("(")
    hands = set()
    for noise_seed in range(10):
        assert env.reset(seed=0, options={"noise_seed": noise_seed})[0] == text
        hands.add(env.step("hit")[0])
    assert len(hands) > 1


class Careful(GymText):
    """Knows how the environment is played, as in the documentation."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        total = sum(self.wrapped.unwrapped.player)
        return f"I hold {total}", ("hit" if total < 17 else "stick",)


def test_an_expert_in_a_subclass_looks_into_the_environment() -> None:
    env = Careful("Blackjack-v1", "Hit or stick.", actions=("stick", "hit"))
    check_contract(env, "env")
    restored = copy.deepcopy(env)
    held = set[bool]()
    for seed in range(20):
        text, _ = env.reset(seed=seed)
        thought, (action,) = env.expert_turn(random.Random(0), 1)
        total, _, usable_ace = (int(each) for each in text[1:-1].split(","))
        assert thought == f"I hold {total - 10 * usable_ace}"
        held.add(action == "hit")
        env.step("hit")
        restored.set_state(env.get_state())
        assert restored.expert_turn(random.Random(0), 1) == env.expert_turn(random.Random(0), 1)
    assert held == {True, False}


class Dice:
    """Seeds and reads the global generator, as some packages do."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        return f"start {random.random()}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"{random.random()} {np.random.random()}", 0.0, False, False, {}


def test_global_generators_are_the_environment_s_own() -> None:
    env = GymText(f"{__name__}.Dice", "Roll.", global_random=True, split="all")
    before = random.getstate(), str(np.random.get_state())
    starts, rolls = set(), set()
    for noise_seed in (1, 2, 3, 1):
        starts.add(env.reset(seed=5, options={"noise_seed": noise_seed})[0])
        other = copy.deepcopy(env)
        rolls.add((env.step("roll")[0], env.step("roll")[0]))
        assert other.step("roll")[0] in {first for first, _ in rolls}
    assert (len(starts), len(rolls)) == (1, 3)
    assert (random.getstate(), str(np.random.get_state())) == before
    check_contract(env, "env")
    with pytest.raises(ValueError, match=r"from equal states with equal noise|twice"):
        check_contract(GymText(f"{__name__}.Dice", "Roll.", split="all"), "env")


def test_what_has_no_text_is_refused() -> None:
    env = echo(split="all")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="has no text: wrap the environment"):
        env.step("object")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"make": "Blackjack-v1"}, "actions: None must name the environment's 2 actions"),
        ({"make": "Blackjack-v1", "actions": ("hit",)}, r"actions: \['hit'\] must name"),
        ({"make": "no.such.thing"}, "make: 'no.such.thing' is neither"),
        ({"make": "nothing"}, "make: gymnasium cannot make 'nothing': "),
        ({"make": "Blackjack-v0"}, "cannot make 'Blackjack-v0': .*Blackjack-v1"),
        ({"make": f"{__name__}.Echo", "max_actions": 0}, "max_actions: 0"),
        ({"make": f"{__name__}.Echo", "split": "evla"}, "did you mean 'eval'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GymText(instruction="", **arguments)
