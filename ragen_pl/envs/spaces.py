"""Gymnasium spaces for text: any text up to a length, and the names of an environment's actions."""

from __future__ import annotations

import string
from typing import Any, Protocol

from gymnasium import spaces


class HasActions(Protocol):
    """An environment with named actions, or with free-text actions (None)."""

    @property
    def actions(self) -> tuple[str, ...] | None: ...


class AnyText(spaces.Text):
    """All texts up to a length, whatever their characters; samples are printable ASCII.

    ``spaces.Text`` alone would need a list of all characters that an environment may ever show.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class ActionNames(spaces.Space[str]):
    """The names of an environment's actions in its current state, such as a bandit's arms.

    It is like ``spaces.Discrete``, with names in place of numbers. Its size is not fixed, so it
    cannot be flattened.

    Args:
        env: The environment; its ``actions`` are read at every call.
    """

    def __init__(self, env: HasActions) -> None:
        super().__init__(dtype=str)
        self._env = env

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the actions; empty if actions are free text."""
        return tuple(self._env.actions or ())

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Sample a name; ``mask`` and ``probability`` as in ``spaces.Discrete``."""
        numbers = spaces.Discrete(len(self.names), seed=self.np_random)
        return self.names[int(numbers.sample(mask, probability))]

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x in self.names

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionNames) and self.names == other.names

    __hash__ = None  # type: ignore[assignment]  # as in gymnasium's spaces: the names change

    def __repr__(self) -> str:
        return f"ActionNames{self.names}"
