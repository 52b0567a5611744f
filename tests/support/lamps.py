"""Make toy environments: a lamp with two buttons."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ragen_pl.envs.base import IDENTITY, Symmetry, TextEnv, refuse_after_end


class Lamp(TextEnv):
    """Press one of two buttons up to three times; a press pays what the noise says, and may be the
    last: lengths and returns differ within a group."""

    name, actions, max_actions = "lamp", ("on", "off"), 3
    instruction = "Press."

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.rng = random.Random((options or {}).get("noise_seed", 0))
        self.lit = self.is_over = False
        return self.render_text(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        refuse_after_end(self, self.is_over)
        self.lit = action == "on"
        reward = self.rng.choice([0.0, 1.0, 3.0])
        self.is_over = ends = self.rng.random() < 0.4
        return self.render_text(), reward, ends, False, {"success": ends and reward > 0}

    def render_text(self) -> str:
        return "lit" if self.lit else "dark"

    def get_state(self) -> dict[str, Any]:
        return {"lit": self.lit, "is_over": self.is_over}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.lit, self.is_over = state["lit"], state["is_over"]

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "", (rng.choice(("on", "off")),)


class NamedLamp(Lamp):
    """Begin lit or dark, as the seed says; a true thought names the light."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.lit = bool((seed or 0) % 2)
        return self.render_text(), {"difficulty": self.render_text()}

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        presses = tuple(rng.choice(("on", "off")) for _ in range(max_actions))
        return self.render_text(), presses

    def thought_correct(self, thought: str) -> bool:
        return thought == self.render_text()

    def thought_grounding(self, thought: str, actions: tuple[str, ...]) -> float:
        """Half for the light now, half for a press (``!``) that is announced."""
        light, announced = thought.removesuffix("!"), thought.endswith("!")
        return (self.thought_correct(light) + (announced == (actions == ("on",)))) / 2

    def vocabulary(self) -> tuple[str, ...]:
        return "lit", "dark"


class Stairs(NamedLamp):
    """Press the button that the light names twice; each wrong press leads down one step."""

    max_actions = 6

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.step_number = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        refuse_after_end(self, self.is_over)
        is_right = action == ("on" if self.lit else "off")
        self.step_number = self.step_number + 1 if is_right else max(0, self.step_number - 1)
        self.is_over = self.step_number == 2
        return self.render_text(), float(is_right), self.is_over, False, {"success": self.is_over}

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "step_number": self.step_number}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.step_number = state["step_number"]

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        return self.render_text(), tuple(plan[:max_actions])

    def symmetries(self) -> tuple[Symmetry, ...]:
        def other(state: Mapping[str, Any]) -> dict[str, Any]:
            return {**state, "lit": not state["lit"]}

        return IDENTITY, Symmetry(other, {"on": "off", "off": "on"}.__getitem__)
