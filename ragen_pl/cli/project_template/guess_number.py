"""An environment to change into your own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.base import TextEnv, refuse_after_end, resolve_seed


class GuessNumber(TextEnv):
    """A secret number, to be found by guesses that shrink the range it lies in.

    What the constructor takes are keys of the configuration: ``--data.env.numbers 20``.

    Args:
        numbers: How many numbers there are.
    """

    name = "guess_number"
    max_actions = 5

    def __init__(self, numbers: int = 10) -> None:
        if numbers < 2:
            raise ValueError(f"numbers is {numbers}; it must be at least 2")
        self.numbers = numbers
        self.actions = tuple(str(number) for number in range(numbers))
        self.secret, self.low, self.high, self.found = 0, 0, numbers - 1, False

    @property
    def instruction(self) -> str:
        """The task, as the agent reads it in the system message."""
        return f"Find the number from 0 to {self.numbers - 1}."

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode: the seed alone decides the start, which the members of a group share.

        Whatever is random later comes from ``options["noise_seed"]``.
        """
        seed = resolve_seed(self, seed)  # as gymnasium's reset does; without a seed it draws one
        self.secret, self.low, self.high = seed % self.numbers, 0, self.numbers - 1
        self.found = False
        return self.render_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated and info with ``success``."""
        refuse_after_end(self, self.found)  # so that nothing is earned twice
        guess = int(action)
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        if guess > self.secret:
            self.high = min(self.high, guess - 1)
        self.found = guess == self.secret
        return self.render_text(), float(self.found), self.found, False, {"success": self.found}

    def render_text(self) -> str:
        """Return the observation."""
        return f"{self.low} to {self.high}"

    def get_state(self) -> dict[str, Any]:
        """Return all that changes, as plain data."""
        return {"secret": self.secret, "low": self.low, "high": self.high, "found": self.found}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned."""
        self.secret, self.low, self.high = state["secret"], state["low"], state["high"]
        self.found = state["found"]

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return a thought and actions for a warm start to imitate; optional."""
        return f"from {self.low} to {self.high}", (str(rng.randint(self.low, self.high)),)
