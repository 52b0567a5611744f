"""The proof that keys act finds those that do not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tests.support.config_key_effects import KeyProof, Outcome


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Config:
    acts: int = 0
    idle: int = 0
    kind: Literal["a", "b", "c"] = "a"
    inner: Inner = Inner()


def use(given: dict[str, Any]) -> Outcome:
    if given["acts"] < 0 or given["inner"].depth < 0:
        raise ValueError
    return {"sum": given["acts"] + given["inner"].depth, "kind": given["kind"] == "a"}


def proof(**others: tuple[Any, ...]) -> KeyProof:
    table = {f"Config.{key}": values for key, values in others.items()}
    return KeyProof(Config, use, others=table | {"Inner.depth": (2,)})


def test_every_key_is_found_and_what_acts_passes() -> None:
    assert proof().paths() == [("acts",), ("idle",), ("kind",), ("inner", "depth")]
    proof(acts=(1, -1)).check(("acts",))
    proof().check(("kind",))
    proof().check(("inner", "depth"))
    proof().check_reproducible()


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"idle": (1,)}, "Config.idle is ignored when it is 1"),
        ({}, "Config.idle needs another value than 0"),
        ({"idle": (0,)}, "Config.idle needs another value than 0"),
    ],
)
def test_an_idle_or_forgotten_key_fails(others: dict[str, tuple[Any, ...]], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        proof(**others).check(("idle",))


def test_a_key_that_is_only_ever_refused_fails() -> None:
    with pytest.raises(AssertionError, match="is refused"):
        proof(acts=(-1, -2)).check(("acts",))


def test_a_run_that_is_never_the_same_fails() -> None:
    wild = KeyProof(Config, lambda given: {"draw": random.random()})
    with pytest.raises(AssertionError):
        wild.check_reproducible()
