"""An environment that fails at random, in every way an environment can, and a ledger of it."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.lamps import NamedLamp

_RAISED = (
    *(RuntimeError, ValueError, KeyError, OSError, TypeError, AssertionError, RecursionError),
    *(MemoryError, StopIteration, UnicodeError, ZeroDivisionError, TimeoutError, ConnectionError),
)


class _Unshowable:
    """A value that raises when it is shown, compared or converted."""

    def __repr__(self) -> str:
        raise RuntimeError("not even shown")

    __str__ = __repr__

    def __float__(self) -> float:
        raise RuntimeError("not even converted")

    def __bool__(self) -> bool:
        raise RuntimeError("not even asked")


_NO_TEXTS: tuple[Any, ...] = (
    *(None, 3, b"lit", ["lit"], math.nan, object(), _Unshowable()),
    *("x" * 1_000_000, "\ud800 alone", "ok\udfff", {"text": "lit"}),
)
NONSENSE: dict[str, tuple[Any, ...]] = {
    "reset": (
        None,
        "lit",
        (),
        ("lit",),
        ("lit", None),
        (None, {}),
        ("\udc00", {}),
        ("x" * 10**6, {}),
    ),
    "reset difficulty": (_Unshowable(), "\ud800", "x" * 10**6),
    "observation": _NO_TEXTS,
    "reward": (
        *(math.nan, math.inf, -math.inf, None, "1", [1.0], 1e300, 10**400, 1j, _Unshowable()),
    ),
    "info": (None, [], {}, {"success": _Unshowable()}, {"done": True}, "success"),
    "step": (None, (), ("lit", 0.0), "lit", ("lit", 0.0, False, False, {}, None), 0.0),
    "get_state": (None, [], {1, 2}, {"x": object()}, {"x": math.nan}, {"x": "\ud800"}, "lit"),
    "state_hash": _NO_TEXTS,
    "anchor_key": _NO_TEXTS,
    "start_key": _NO_TEXTS,
    "instruction": _NO_TEXTS,
    "actions": ((), 5, ("on", 3), "on", [], (None,), _Unshowable(), ("\ud800",)),
    "max_actions": (0, -1, "three", None, 2.5, math.nan, _Unshowable()),
    "thought_correct": ("yes", 3, [], math.nan, _Unshowable()),
}
"""What methods give in place of what they should, by method or part of what it returns."""
METHODS = tuple(name for name in NONSENSE if name not in ("reset difficulty", "reward", "info"))
"""Methods that may also raise."""


class FaultyWorld(NamedLamp):
    """A lamp that fails in trajectories drawn by their noise, once in each.

    What must not be disturbed by chance has the noise 0, such as the choice of evaluation starts.

    Args:
        ledger: File to which each fault is appended as it happens.
        rate: Share of trajectories with a fault.
        whole: Whether faults are in all members of a group or in none; of two groups in a rollout,
            both fail in every third and one in every other of the rest.
        hangs: Whether the fault is a step without an end.
        salt: Number by which worlds differ in their faults.
    """

    def __init__(
        self,
        ledger: str,
        rate: float,
        *,
        whole: bool = False,
        hangs: bool = False,
        salt: int = 0,
    ) -> None:
        self.salt = salt
        self.ledger, self.rate, self.whole, self.hangs = ledger, rate, whole, hangs
        self.seed, self.fault, self.raises = 0, "", False
        self.chance = random.Random(0)

    def _plan(self, seed: int, noise: int) -> None:
        """Draw this trajectory's fault."""
        draw = random.Random(f"fault {self.salt} {seed if self.whole else (seed, noise)}")
        self.fault, self.raises, self.chance = "", False, draw
        fails = seed // 2 % 3 == 2 or seed % 4 == 3 if self.whole else draw.random() < self.rate
        if noise == 0 or not fails:
            return
        self.fault = "hang" if self.hangs else draw.choice(tuple(NONSENSE))
        self.raises = self.fault in METHODS and draw.random() < 0.4

    def _or(self, name: str, right: Any) -> Any:
        """Return what is right, or what the fault of this trajectory gives in its place."""
        if self.fault != name:
            return right
        self.fault = ""
        note(self.ledger, method=_METHOD.get(name, name), seed=self.seed)
        if self.raises:
            raise self.chance.choice(_RAISED)(f"planted \x1b[31m in {name}\x07")
        return self.chance.choice(NONSENSE[name])

    @property
    def instruction(self) -> str:  # type: ignore[override]
        return self._or("instruction", "Press.")  # type: ignore[no-any-return]

    @property
    def actions(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._or("actions", ("on", "off"))  # type: ignore[no-any-return]

    @property
    def max_actions(self) -> int:  # type: ignore[override]
        return self._or("max_actions", 3)  # type: ignore[no-any-return]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.seed, noise = seed or 0, (options or {}).get("noise_seed", 0)
        self._plan(self.seed, noise)
        text, info = super().reset(seed=seed, options=options)
        if self.fault == "reset difficulty":
            info = {**info, "difficulty": self._or("reset difficulty", "")}
        return self._or("reset", (text, info))  # type: ignore[no-any-return]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, info = super().step(action)
        if self.fault == "hang":
            note(self.ledger, method="step", seed=self.seed)
            while True:
                time.sleep(10)
        if self.fault == "observation":
            text = self._or("observation", text)
        if self.fault == "reward":
            reward = self._or("reward", reward)
        if self.fault == "info":
            info = self._or("info", info)
        return self._or("step", (text, reward, terminated, truncated, info))  # type: ignore[no-any-return]

    def get_state(self) -> dict[str, Any]:
        return self._or("get_state", super().get_state())  # type: ignore[no-any-return]

    def state_hash(self) -> str:
        return self._or("state_hash", "lit" if self.lit else "dark")  # type: ignore[no-any-return]

    def anchor_key(self) -> str:
        return self._or("anchor_key", "lit" if self.lit else "dark")  # type: ignore[no-any-return]

    def start_key(self) -> str:
        return self._or("start_key", "lit" if self.lit else "dark")  # type: ignore[no-any-return]

    def thought_correct(self, thought: str) -> bool:
        return self._or("thought_correct", thought == "lit")  # type: ignore[no-any-return]


_METHOD = {
    **{"reset difficulty": "reset", "observation": "step", "reward": "step", "info": "step"},
}


def note(ledger: str, **facts: int | str) -> None:
    """Append a fault to the ledger, before it happens."""
    with Path(ledger).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
