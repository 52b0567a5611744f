"""Make environments of which one method fails, now and then."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.lamps import NamedLamp

When = Callable[["FaultyLamp"], bool]
"""Tells from an environment whether it is time to fail."""


def at_some_seeds(env: FaultyLamp) -> bool:
    """At odd seeds below a thousand; of those a thousand apart, as evaluation sets try, at every
    other."""
    return (env.seed + env.seed // 1000) % 2 == 1


def after_a_press(env: FaultyLamp) -> bool:
    return at_some_seeds(env) and env.presses > 0


def always(env: FaultyLamp) -> bool:
    return True


class FaultyLamp(NamedLamp):
    """A lamp one of whose methods gives something else, or raises it.

    Args:
        method: Its name, ``reward`` for what ``step`` pays.
        instead: What it gives; an exception is raised.
        when: By default at half of the seeds.
    """

    def __init__(self, method: str, instead: Any, when: When = at_some_seeds) -> None:
        self.method, self.instead, self.when = method, instead, when
        self.seed, self.presses = 0, 0

    def _or(self, method: str, right: Any) -> Any:
        if method != self.method or not self.when(self):
            return right
        if isinstance(self.instead, BaseException):
            raise self.instead
        return self.instead

    @property
    def instruction(self) -> str:  # type: ignore[override]
        return str(self._or("instruction", "Press."))

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.seed, self.presses = seed or 0, 0
        return self._or("reset", super().reset(seed=seed, options=options))  # type: ignore[no-any-return]

    def difficulty_of(self, seed: int) -> str:
        return self._or("difficulty_of", super().difficulty_of(seed))  # type: ignore[no-any-return]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, *rest = super().step(action)
        self.presses += 1
        return self._or("step", (text, self._or("reward", reward), *rest))  # type: ignore[no-any-return]

    def get_state(self) -> dict[str, Any]:
        return self._or("get_state", super().get_state())  # type: ignore[no-any-return]

    def state_hash(self) -> str:
        return self._or("state_hash", super().state_hash())  # type: ignore[no-any-return]

    def thought_correct(self, thought: str) -> bool:
        return self._or("thought_correct", super().thought_correct(thought))  # type: ignore[no-any-return]

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        return self._or("thought_grounding", super().thought_grounding(thought, actions))  # type: ignore[no-any-return]

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return self._or("expert_turn", super().expert_turn(rng, max_actions))  # type: ignore[no-any-return]


class Unbuildable(NamedLamp):
    """An environment that cannot be built again in another process."""

    def __getstate__(self) -> dict[str, object]:
        return {"corpus": "words.txt"}

    def __setstate__(self, state: object) -> None:
        raise RuntimeError("the corpus is missing")


class Rebellious(NamedLamp):
    """At odd seeds, ``step`` does something that no exception tells of.

    Args:
        deed: ``hang``, ``sleep``, ``die``, or ``withhold``: return what cannot be sent.
    """

    def __init__(self, deed: str) -> None:
        self.deed, self.seed, self.presses = deed, 0, 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.seed, self.presses = seed or 0, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.presses += 1
        if self.seed % 2 and self.presses == 2 - self.seed // 2 % 2:
            while self.deed == "hang":
                pass
            if self.deed == "sleep":
                time.sleep(1000)
            if self.deed == "withhold":
                return "", (lambda: 1), False, False, {}  # type: ignore[return-value]
            os._exit(7)
        return super().step(action)
