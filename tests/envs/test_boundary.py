"""The boundary to environments: what passes, and the error of what does not."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import numpy as np
import pytest

from ragen_pl.envs.boundary import CheckedEnv, EnvError, warn
from ragen_pl.envs.contract import check_contract
from tests.support.faulty import FaultyLamp, When, always, at_some_seeds
from tests.support.lamps import Lamp

INFO = {"success": False}


def call(method: str, instead: Any, when: When = always, seed: int = 1) -> Any:
    """Reset an environment and call the method that may fail."""
    env = CheckedEnv(FaultyLamp(method, instead, when))
    if method == "reset":
        return env.reset(seed, 2)
    if method == "difficulty_of":
        return env.difficulty_of(seed)
    env.env.reset(seed=seed, options={"noise_seed": 2})
    if method in ("step", "reward"):
        return env.step("on")
    if method == "thought_correct":
        return env.thought_correct("lit")
    if method == "thought_grounding":
        return env.thought_grounding("lit", ("on",))
    if method == "expert_turn":
        return env.expert_turn(random.Random(0), 2)
    return env.state() if method == "get_state" else env.state_hash()


METHODS = (
    *("reset", "step", "difficulty_of", "get_state", "state_hash"),
    *("thought_correct", "thought_grounding", "expert_turn"),
)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_raised_is_told_with_its_place(method: str) -> None:
    with pytest.raises(
        EnvError, match=rf"^{method} raised KeyError: 'north' \(.*faulty\.py:\d+\)$"
    ):
        call(method, KeyError("north"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_comes_through(method: str, kind: type[BaseException]) -> None:
    with pytest.raises(kind):
        call(method, kind())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_right_comes_through(method: str) -> None:
    assert call(method, None, at_some_seeds, seed=2) is not None


@pytest.mark.parametrize(
    ("info", "difficulty", "length"),
    [
        ({}, "", None),
        ({"difficulty": None, "optimal_length": None}, "", None),
        ({"difficulty": np.int64(3), "optimal_length": np.int64(4)}, "3", 4),
        ({"difficulty": 0.5, "optimal_length": 0}, "0.5", None),
    ],
)
def test_a_start_may_be_of_any_difficulty_or_none(
    info: dict[str, Any], difficulty: str, length: int | None
) -> None:
    first = call("reset", ("lit", info))
    assert (first.difficulty, first.optimal_length) == (difficulty, length)


@pytest.mark.parametrize(
    ("method", "instead", "told"),
    [
        ("reset", "lit", "reset returned 'lit'; it must return a text and a dict"),
        ("reset", (b"lit", {}), "a text and a dict"),
        ("reset", ("lit", {"difficulty": float("nan")}), r"\{'difficulty': nan\}; .* text or a f"),
        (
            "reset",
            ("lit", {"difficulty": False}),
            r"\{'difficulty': False\}; it must return a text",
        ),
        ("reset", ("lit", {"difficulty": ["hard"]}), r"\{'difficulty': \['hard'\]\}; it must"),
        (
            "reset",
            ("lit", {"optimal_length": "3"}),
            r"\{'optimal_length': '3'\}; .*an integer of 1",
        ),
        ("reset", ("lit", {"optimal_length": True}), r"\{'optimal_length': True\}"),
        ("reset", ("lit", {"optimal_length": -3}), r"\{'optimal_length': -3\}"),
        ("reset", ("lit", {"optimal_length": 2.5}), r"\{'optimal_length': 2.5\}"),
        ("step", ("lit", 1.0, True, INFO), "step returned"),
        ("step", (None, 1.0, True, True, INFO), "step returned None; it must return a text first"),
        ("step", ("lit", 1.0, True, True, {}), 'info with a bool "success"'),
        ("step", ("lit", 1.0, False, True, {"success": True}), '"success" only where it termin'),
        ("reward", float("nan"), "step returned nan; it must return a number as reward, finite"),
        ("reward", float("-inf"), "step returned -inf"),
        ("reward", 1e30, "step returned 1e.30; .* at most 1e.18"),
        ("reward", "1", "step returned '1'"),
        ("reward", None, "step returned None"),
        (
            "get_state",
            {"at": object()},
            "get_state returned .*; it .* a dict of plain data",
        ),
        ("get_state", [1], r"get_state returned \[1\]"),
        ("state_hash", 7, "state_hash returned 7; it must return a text"),
        ("difficulty_of", 7, "difficulty_of returned 7; it must return a text"),
        ("thought_correct", "yes", "thought_correct returned 'yes'; it must return a bool or None"),
        (
            "thought_grounding",
            1.5,
            r"thought_grounding returned 1.5; .* a number in \[0, 1\] or None",
        ),
        ("thought_grounding", float("nan"), "thought_grounding returned nan"),
        ("thought_grounding", "half", "thought_grounding returned 'half'"),
        ("expert_turn", ("", ("north",)), "expert_turn returned 'north'; .* actions of on, off"),
        ("expert_turn", ("", ()), "from 1 to 2 actions"),
        ("expert_turn", ("", ("on",) * 3), "from 1 to 2 actions"),
        ("expert_turn", (None, ("on",)), "a thought, which is text"),
        ("expert_turn", ("on",), "a thought, which is text"),
        ("expert_turn", ("", "on"), "a tuple of actions: .* with the comma"),
    ],
)
def test_what_breaks_the_contract_does_not(method: str, instead: Any, told: str) -> None:
    with pytest.raises(EnvError, match=told):
        call(method, instead)


def test_a_page_of_an_exception_is_cut() -> None:
    with pytest.raises(EnvError) as caught:
        call("step", RuntimeError("x" * 5000))
    assert len(str(caught.value)) < 400


def test_a_warning_is_counted_rather_than_repeated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for number in range(2000):
            warn("one", f"number {number}")
        warn("other", "another")
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "number 0",
        "number 9 (10 times by now)",
        "number 99 (100 times by now)",
        "number 999 (1000 times by now)",
        "another",
    ]


def test_the_place_of_a_fault_is_in_the_users_code() -> None:
    """The standard library raises; what is wrong is in the line that called it."""

    def load(*_: object) -> str:
        return str(json.loads("{"))

    env = Lamp()
    env.render_text = load  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=r"JSONDecodeError: .* \(.*test_boundary\.py:\d+\)"):
        CheckedEnv(env).render_text()
    with pytest.raises(ValueError, match=r"JSONDecodeError: .* \(.*test_boundary\.py:\d+\)"):
        check_contract(env, "data.env")
