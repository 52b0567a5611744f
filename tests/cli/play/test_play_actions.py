"""What a person who plays is told of the actions."""

from __future__ import annotations

from typing import Any, Literal

from ragen_pl.cli.play.actions import actions_of
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.tools import ToolEnv
from tests.support.broken_envs import Guess
from tests.support.lamps import Lamp


class Desk(ToolEnv):
    name, instruction, task = "desk", "Help.", "A parcel is late."  # type: ignore[assignment]

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        return {}

    def find(self, customer: str) -> str:
        """Find a customer's order number."""
        return "1"

    def refund(
        self, order: int, why: Literal["late", "lost"], items: list[int] | None = None
    ) -> str:
        """Refund an order."""
        return "done"


class Far(Desk):
    """Tools of another program, whose schemas say less."""

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        named = {"a": True, "b": {"type": ["array", "null"]}}
        return (
            {"function": {"name": "ping"}},
            {"function": {"name": "send", "parameters": {"properties": named}}},
        )


def told(env: Any) -> list[str]:
    checked = CheckedEnv(env)
    checked.reset(0, 0)
    return actions_of(checked).split("\n")


def test_names_are_listed() -> None:
    assert told(Lamp()) == ["on, off"]


def test_free_text_is_what_the_environment_says_of_it() -> None:
    class Numbers(Guess):
        actions_text = "a digit"  # type: ignore[assignment]

    assert told(Guess()) == ["free text"]
    assert told(Numbers()) == ["a digit"]


def test_tools_are_listed_with_their_arguments_and_an_example() -> None:
    assert told(Desk()) == [
        'one call of a tool, such as {"name": "find", "arguments": {"customer": "x"}}',
        "find(customer: string): Find a customer's order number.",
        'refund(order: integer, why: "late" or "lost", items: list of integer or null = null): '
        "Refund an order.",
    ]


def test_tools_whose_schemas_say_little_are_listed_as_well() -> None:
    assert told(Far())[1:] == ["ping()", "send(a = …, b: list or null = …)"]
