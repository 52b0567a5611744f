"""A small environment with exactly skyrl-gym's interface, and the part of the package that is
used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

Messages = list[dict[str, str]]


class Guess:
    """Guess a number: it is told whether the guess is too small or too large."""

    opened = 0

    def __init__(self, env_config: Any = None, extras: dict[str, Any] = {}) -> None:  # noqa: B006
        assert "reward_spec" in extras, "reward_spec field is required"
        self.wanted = int(extras["reward_spec"]["ground_truth"])
        self.max_turns, self.turns = extras["max_turns"], 0
        self.prize = env_config.prize if "prize" in env_config else 1.0
        self.is_open = True
        Guess.opened += 1

    def init(self, prompt: Messages) -> tuple[Messages, dict[str, Any]]:
        prompt[-1]["content"] += " Guess."
        return prompt, {"any": "thing"}

    def step(self, action: str) -> dict[str, Any]:
        self.turns += 1
        given = int(action) if action.isdecimal() and len(action) < 9 else -1
        right, told = given == self.wanted, "larger" if given < self.wanted else "smaller"
        done = right or self.turns >= self.max_turns
        said = [] if done else [{"role": "user", "content": f"It is {told}."}]
        return {
            "observations": said,
            "reward": self.prize if right else 0.0,
            "done": done,
            "metadata": {"right": right},
            "postprocessed_action": action.strip(),
        }

    def close(self) -> None:
        if self.is_open:
            Guess.opened -= 1
        self.is_open = False


def package() -> SimpleNamespace:
    """Return a module like skyrl_gym, with one environment registered."""
    registry = {"guess": Guess}

    def make(name: str, **arguments: Any) -> Guess:
        return registry[name](**arguments)

    return SimpleNamespace(registry=registry, make=make)
