"""What an environment must give back, told before a run rests on it."""

from __future__ import annotations

from typing import Any

import pytest

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
from tests.test_rollout import Counter


@pytest.mark.parametrize("env", [Bandit(), FrozenLake(), Sokoban(), Counter()])
def test_a_sound_environment_is_left_as_it_was(env: TextEnv) -> None:
    before = dict(vars(env))
    check_contract(env, "data.env")
    assert vars(env) == before


def returning(method: str, value: Any) -> TextEnv:
    return type("Odd", (Counter,), {method: lambda *_, **__: value})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "value", "told"),
    [
        ("reset", "a text alone", r"whose reset returned 'a text alone'; .* a text and a dict"),
        ("get_state", None, r"whose get_state returned None; .* plain data"),
        ("get_state", {"at": {1, 2}}, r"whose get_state returned .*\{1, 2\}.* plain data"),
        ("step", ("a", 1.0, True, {"success": True}), r"step returned .*text, reward, terminated,"),
        ("step", (1, 1.0, True, False, {}), "a text … and a dict"),
        ("step", ("a", "1", True, False, {"success": True}), "a finite number as reward"),
        ("step", ("a", float("nan"), True, False, {"success": True}), "a finite number as reward"),
        ("step", ("a", 1.0, True, False, {}), 'info with a bool "success"'),
    ],
)
def test_what_comes_back_wrong_is_named(method: str, value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.env is Odd, {'.*' + told}"):
        check_contract(returning(method, value), "data.env")


def test_a_state_that_is_not_restored_is_named() -> None:
    class Forgetful(Counter):
        def set_state(self, state: Any) -> None:
            self.count = -1

    with pytest.raises(ValueError, match=r"returned \{'count': -1\}; .* \{'count': 0\}"):
        check_contract(Forgetful(), "data.env")


def test_free_text_is_not_guessed() -> None:
    class Free(Counter):
        actions = None  # type: ignore[assignment]

    check_contract(Free(), "data.env")
