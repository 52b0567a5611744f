"""A bandit of two arms whose names hint at their risk: one turn, one action, a noisy reward.

RAGEN (arXiv 2504.20073, section on environments): the low arm always pays 0.15, the high arm pays
1 in a quarter of all cases, so the risky arm is the better one on average.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from ragen_pl.envs.arrays import Features, one_hot
from ragen_pl.envs.base import (
    TextEnv,
    noise_generator,
    one_of,
    refuse_after_end,
    resolve_seed,
)
from ragen_pl.envs.picture import Box, Color, Disc, Drawing, Line, Point, Shape

LOW_REWARD = 0.15
HIGH_REWARD = 1.0
HIGH_PROBABILITY = 0.25

Arms = tuple[str, str]
"""Names of two arms: the one that sounds safe, then the one that sounds risky."""
PairSet = Literal["phoenix_dragon", "teacher_engineer", "named"]

PAIRS: dict[str, dict[str, tuple[Arms, ...]]] = {
    "phoenix_dragon": {
        "train": (("Phoenix", "Dragon"),),
        "eval": (("Phoenix", "Dragon"),),
    },
    "teacher_engineer": {
        "train": (("Teacher", "Engineer"),),
        "eval": (("Librarian", "Trader"),),
    },
    "named": {
        "train": (
            ("Teacher", "Trader"),
            ("Nurse", "StartupFounder"),
            ("Librarian", "Investor"),
            ("Accountant", "StockBroker"),
            ("Engineer", "RealEstateAgent"),
            ("Pharmacist", "Musician"),
            ("Clerk", "Freelancer"),
            ("Technician", "Youtuber"),
            ("Planner", "Artist"),
            ("Postman", "Pilot"),
            ("Banker", "VentureCapitalist"),
            ("Gardener", "Cryptominer"),
        ),
        "eval": (
            ("Receptionist", "Explorer"),
            ("Archivist", "Filmmaker"),
            ("Bookkeeper", "Consultant"),
            ("SocialWorker", "Photographer"),
            ("Mechanic", "GameDesigner"),
            ("Secretary", "Entrepreneur"),
            ("Cashier", "DataScientist"),
            ("CivilServant", "StartupAccelerator"),
        ),
    },
}
"""Names of the arms in the paper and in its released code, by set and split."""


class Bandit(TextEnv):
    """A two-armed bandit that is played once.

    The seed decides the pair and which arm is named first; ``noise_seed`` decides what an arm pays,
    so the members of a group share the prompt but not the payoffs. Success is the choice of the
    high arm, whatever it paid.

    Args:
        pair: ``phoenix_dragon`` (the paper's; both splits have the same pair, so its evaluation set
            measures no generalization), ``teacher_engineer`` (the paper's generalization test: its
            evaluation set has Librarian and Trader), or ``named`` (12 pairs, and 8 others on the
            evaluation set).
        reversed_risk: Whether the arm that sounds safe is the high one (the paper's BanditRev).
        split: ``train`` for the training names, ``eval`` for the names of an evaluation set.
    """

    name = "bandit"
    max_actions = 1
    actions: tuple[str, ...]

    def __init__(
        self,
        pair: PairSet = "phoenix_dragon",
        reversed_risk: bool = False,
        split: Literal["train", "eval"] = "train",
    ) -> None:
        self.split = one_of("split", split, Literal["train", "eval"])
        self._pairs = PAIRS[one_of("pair", pair, PairSet)][self.split]
        self.reversed_risk = reversed_risk
        # All names until a reset offers two of them, so that a tokenizer learns every one.
        self.actions = tuple(name for arms in self._pairs for name in arms)
        self._low = self._pairs[0][int(reversed_risk)]
        self._choice: str | None = None
        self._reward = 0.0
        self._noise = noise_generator(self.name, 0, None)

    @property
    def instruction(self) -> str:
        """The task in words."""
        return (
            "You play a bandit with two arms, once.\n"
            "What an arm pays is random; its name hints at how.\n"
            "Choose the arm that pays more on average."
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Offer the two arms that the seed decides."""
        seed = resolve_seed(self, seed)
        rng = random.Random(f"bandit {seed}")
        arms = rng.choice(self._pairs)
        self._low = arms[int(self.reversed_risk)]
        self.actions = arms if rng.random() < 0.5 else arms[::-1]
        self._choice, self._reward = None, 0.0
        self._noise = noise_generator(self.name, seed, options)
        return self.render_text(), {"difficulty": "-".join(arms), "optimal_length": 1}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pull an arm; this ends the episode."""
        refuse_after_end(self, self._choice is not None)
        if action not in self.actions:
            raise ValueError(f"action: {action!r} is none of {', '.join(self.actions)}")
        high = action != self._low
        if high:
            self._reward = HIGH_REWARD if self._noise.random() < HIGH_PROBABILITY else 0.0
        else:
            self._reward = LOW_REWARD
        self._choice = action
        return self.render_text(), self._reward, True, False, {"success": high}

    def render_text(self) -> str:
        """Return the arms in the order of the seed, or what the chosen one paid."""
        if self._choice is None:
            return f"Arms: {self.actions[0]}, {self.actions[1]}"
        return f"{self._choice} paid {self._reward:g}"

    def get_state(self) -> dict[str, Any]:
        """Return the arms and the outcome so far, without the noise that decides a later payoff."""
        return {
            "arms": list(self.actions[:2]),
            "low": self._low,
            "choice": self._choice,
            "reward": self._reward,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``get_state`` returned, except the noise generator, which stays as it is."""
        left, right = state["arms"]
        self.actions = (left, right)
        self._low, self._choice = state["low"], state["choice"]
        self._reward = state["reward"]

    def features(self) -> Features:
        """Return the names of the two arms as rows, each with whether it was chosen, and what it
        paid."""
        names = [name for arms in self._pairs for name in arms]
        arms = self.actions[:2]
        chosen = np.array([[arm == self._choice] for arm in arms], dtype=np.float32)
        known = one_hot([names.index(arm) for arm in arms], len(names))
        return np.hstack([known, chosen, chosen * np.float32(self._reward)])

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        """Draw the two arms as slot machines and what the chosen one paid."""
        return draw_arms(state)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        """Return either arm half of the time: imitating it teaches the format, not which arm is
        better. The thought claims nothing, so that ``thought_correct`` returns None.
        """
        arm = rng.choice(self.actions[:2])
        return f"try {arm}", (arm,)

    def vocabulary(self) -> Iterator[str]:
        """List lines of the instruction, observations, and words of a thought."""
        for line in self.instruction.split("\n"):
            yield from (line + "\n", line)
        yield from ("Arms:", ",", " paid", "try")
        yield from (f" {reward:g}" for reward in (0.0, LOW_REWARD, HIGH_REWARD))
        for arms in self._pairs:
            yield from (spelled for name in arms for spelled in (name, f" {name}"))


_TABLE: Color = (240, 234, 222)
_CHOSEN: Color = (255, 219, 120)
_SAFE: Color = (66, 122, 189)
_RISKY: Color = (201, 76, 70)
_PANE: Color = (250, 248, 243)
_DARK: Color = (52, 60, 74)
_LEVER: Color = (120, 128, 140)
_COIN: Color = (238, 180, 52)
_COIN_EDGE: Color = (176, 124, 22)


def draw_arms(state: Mapping[str, Any]) -> Drawing:
    """Draw a state of ``Bandit``: the low arm is blue, the high one red.

    The chosen arm has a bright background, and its tray holds a coin as large as the payoff.
    """
    shapes: list[Shape] = []
    for index, name in enumerate(state["arms"]):
        chosen = name == state["choice"]
        color = _SAFE if name == state["low"] else _RISKY
        middle = (2.0, 1.45 + 3.0 * index)
        if chosen:
            shapes.append(Box(middle, 1.45, _CHOSEN, rounding=0.3))
        shapes += _machine(middle, color, pulled=chosen)
        if chosen and state["reward"] > 0:
            # The area, not the radius, is proportional to the amount.
            radius = 0.30 * max(float(state["reward"]) ** 0.5, 0.5)
            tray = (middle[0] + 0.66, middle[1] - 0.12)
            shapes += [Disc(tray, radius, _COIN_EDGE), Disc(tray, radius * 0.75, _COIN)]
    return Drawing(4, 6, _TABLE, tuple(shapes))


def _machine(middle: Point, color: Color, *, pulled: bool) -> Iterator[Shape]:
    row, column = middle
    pivot = (row + 0.05, column + 0.90)
    knob = (row + (0.65 if pulled else -0.65), column + 1.12)
    yield Line(pivot, knob, 0.12, _LEVER)
    yield Disc(knob, 0.17, color)
    yield Box((row, column - 0.12), 1.05, _DARK, rounding=0.22)
    yield Box((row, column - 0.12), 0.97, color, rounding=0.16)
    for offset in (-0.56, 0.0, 0.56):
        place = (row - 0.35, column - 0.12 + offset)
        yield Box(place, 0.25, _DARK, rounding=0.06)
        yield Box(place, 0.21, _PANE, rounding=0.04)
        yield Disc(place, 0.10, color)
    yield Line((row + 0.66, column - 0.62), (row + 0.66, column + 0.38), 0.46, _DARK)
