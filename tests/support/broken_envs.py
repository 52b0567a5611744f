"""Environments with one defect each, for ``check-env`` to find, and a healthy one of free text."""

from __future__ import annotations

import copy
import itertools
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ragen_pl.envs.arrays import Features
from ragen_pl.envs.base import (
    IDENTITY,
    NoExpertError,
    Symmetry,
    TextEnv,
    noise_generator,
    refuse_after_end,
)
from ragen_pl.envs.frozen_lake.env import FrozenLake
from ragen_pl.envs.tools import ToolEnv
from tests.support.lamps import Stairs

Step = tuple[str, float, bool, bool, dict[str, Any]]


class Guess(TextEnv):
    """Guess a number from 0 to 9 in words of one's own: healthy."""

    name, actions, max_actions = "guess", None, 6
    instruction = "Guess a number from 0 to 9."

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.secret, self.hint, self.found = (seed or 0) % 10, "guess", False
        return self.render_text(), {"difficulty": "easy", "optimal_length": 1}

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.found)
        guess = self.read(action)
        self.found = guess == self.secret
        self.hint = "no number" if guess is None else "more" if guess < self.secret else "less"
        return self.render_text(), float(self.found), self.found, False, {"success": self.found}

    def read(self, action: str) -> int | None:
        return int(action) if len(action) == 1 and action in "0123456789" else None

    def render_text(self) -> str:
        return self.hint

    def get_state(self) -> dict[str, Any]:
        return {"secret": self.secret, "hint": self.hint, "found": self.found}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.secret, self.hint, self.found = state["secret"], state["hint"], state["found"]

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "I know", (str(self.secret),)


class Unsung(Guess):
    """Ends where the number is found, without saying that this is success."""

    def step(self, action: str) -> Step:
        observation, reward, ended, cut, _ = super().step(action)
        return observation, reward, ended, cut, {"success": False}


class Fragile(Guess):
    """Breaks at what is no number."""

    def read(self, action: str) -> int | None:
        return int(action)


class Suicidal(Guess):
    """Ends its process when it is told to."""

    def read(self, action: str) -> int | None:
        if "exit" in action:
            os._exit(3)
        return super().read(action)


class LongStart(Guess):
    """Takes its time for a start, and none for an answer."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        time.sleep(0.6)
        return super().reset(seed=seed, options=options)


class LongAnswer(Guess):
    """Takes its time for one answer."""

    def read(self, action: str) -> int | None:
        if action == "null":
            time.sleep(2.0)
        return super().read(action)


class Boastful(Guess):
    """Names an optimal length that anybody beats."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {"optimal_length": 3}


class NoisyStart(Stairs):
    """Begins where the noise says."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        _, info = super().reset(seed=seed, options=options)
        self.lit = bool((options or {}).get("noise_seed", 0) % 2)
        return self.render_text(), info


class Forgetful(Stairs):
    """Has a state without the number of steps, on which the end depends."""

    def get_state(self) -> dict[str, Any]:
        return {"lit": self.lit, "is_over": self.is_over}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.lit, self.is_over, self.step_number = state["lit"], state["is_over"], 0


class Resentful(Stairs):
    """Pays less for each episode that it has played, of which nothing but the reward tells."""

    episodes = 0

    def step(self, action: str) -> Step:
        text, reward, terminated, truncated, info = super().step(action)
        self.episodes += terminated or truncated
        return text, reward - self.episodes, terminated, truncated, info


class Siamese(Stairs):
    """Counts its steps in a list that deep copies share."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.counted = [0]
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        text, reward, *rest = super().step(action)
        self.counted[0] += 1
        return text, reward + self.counted[0], *rest  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Siamese:
        return copy.copy(self)


class Locked(Stairs):
    """Holds a lock, which no pickle can."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.lock = threading.Lock()
        return super().reset(seed=seed, options=options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Locked:
        return copy.copy(self)


class Immortal(Stairs):
    """Pays on after the end."""

    def step(self, action: str) -> Step:
        self.is_over = False
        return super().step(action)


class Lucky(Stairs):
    """Pays what the noise says, of which the state holds nothing: healthy."""

    def step(self, action: str) -> Step:
        text, reward, *rest = super().step(action)
        return text, reward + self.rng.random(), *rest  # type: ignore[return-value]


class SeldomLucky(Stairs):
    """Pays more in one step of 32, as a noise says that the start decides, too: healthy."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        first = super().reset(seed=seed, options=options)
        self.rng = noise_generator("seldom", seed or 0, options)
        return first

    def step(self, action: str) -> Step:
        text, reward, *rest = super().step(action)
        return text, reward + (self.rng.random() < 1 / 32), *rest  # type: ignore[return-value]


class Repeating(Lucky):
    """Seeds its noise anew whenever a state is restored."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.rng = random.Random(5)


class Recorder(Lucky):
    """Keeps the generator of its noise in the state."""

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "rng": self.rng.getstate()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        version, words, rest = state["rng"]
        self.rng.setstate((version, tuple(words), rest))


class SeededRecorder(Recorder):
    """Keeps a generator in the state, which the seed alone has made."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        return super().reset(seed=seed, options={"noise_seed": seed})


class Mute(Stairs):
    """Shows nothing."""

    def render_text(self) -> str:
        return " "


class Numbered(Stairs):
    """Keeps the right button by number, and looks it up by number."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.wanted = {0: "off", 1: "on"}
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        text, _, *rest = super().step(action)
        right = self.wanted.get(int(self.lit)) == action
        return text, float(right), *rest  # type: ignore[return-value]

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "wanted": self.wanted}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.wanted = state["wanted"]


class Literal(Numbered):
    """Cannot do without the numbers."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state({**state, "wanted": {0: state["wanted"][0], 1: state["wanted"][1]}})


class Wordy(Guess):
    """Has an expert that returns a text in place of a tuple."""

    def expert_turn(  # type: ignore[override]
        self, rng: random.Random, max_actions: int
    ) -> tuple[str, str]:
        return "I know", str(self.secret)


class Uncopyable(Stairs):
    """Holds what cannot be copied from its beginning on."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Startless(Stairs):
    """Has no start at all."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        raise IndexError("no room")


class LateFault(Stairs):
    """Has no start at its seventh seed."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if seed == 7:
            raise IndexError("no room for it")
        return super().reset(seed=seed, options=options)


class Encore(Stairs):
    """Pays on after the end, which only the expert reaches, up many steps."""

    max_actions = 14
    height = 9

    def step(self, action: str) -> Step:
        is_right = action == ("on" if self.lit else "off")
        self.step_number = self.step_number + 1 if is_right else 0
        ends = self.step_number >= self.height
        return self.render_text(), float(is_right), ends, False, {"success": ends}

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "", ("on" if self.lit else "off",)


class Eternal(Stairs):
    """Never ends."""

    def step(self, action: str) -> Step:
        text, reward, *_ = super().step(action)
        self.is_over = False
        return text, reward, False, False, {"success": False}


class Chronicler(Stairs):
    """Shows all that ever happened."""

    max_actions = 12

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.told = ""
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.is_over)
        self.told += f"and then somebody pressed the button that is called {action}; " * 3
        return super().step(action)

    def render_text(self) -> str:
        return super().render_text() + self.told

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "told": self.told}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.told = state["told"]


class Hashed(Stairs):
    """Takes its start from the order of a set, which every process has of its own."""

    word = ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        _, info = super().reset(seed=seed, options=options)
        self.word = next(iter({f"word {seed} {number}" for number in range(50)}))
        return self.render_text(), info

    def render_text(self) -> str:
        return f"{super().render_text()} {self.word}"

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "word": self.word}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.word = state["word"]


class Forward(Stairs):
    """Moves on whenever it is shown."""

    def render_text(self) -> str:
        self.step_number = getattr(self, "step_number", 0) + 1
        return super().render_text()


class Painter(Stairs):
    """Moves on whenever it is painted."""

    def render(self) -> str:
        self.lit = not self.lit
        return super().render_text()


class Fidgety(Stairs):
    """Has an expert that moves while it thinks."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        turn = super().expert_turn(rng, max_actions)
        self.lit = not self.lit
        return turn


class Muser(Stairs):
    """Press a button while it looks for words."""

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        self.step_number += 1
        return self.render_text(), tuple(plan[:max_actions])


class NarrowSeeds(Stairs):
    """Takes seeds of 32 bits."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        np.random.RandomState(seed)
        return super().reset(seed=seed, options=options)


class Slow(Stairs):
    """Takes its time."""

    def step(self, action: str) -> Step:
        time.sleep(0.08)
        return super().step(action)


class Blurred(Stairs):
    """Has features in which its states look alike."""

    def features(self) -> Features:
        return np.zeros(3, dtype=np.float32)


class Counting(Stairs):
    """Has features that tell how often they were asked for."""

    asked = 0

    def features(self) -> Features:
        self.asked += 1
        return np.array([self.lit, self.asked / 1000], dtype=np.float32)


class Gift(Stairs):
    """Succeeds with the first press, whichever it is."""

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.is_over)
        self.is_over = True
        return self.render_text(), 1.0, True, False, {"success": True}


class Restless(Stairs):
    """Begins where its past says, not where the seed does."""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        _, info = super().reset(seed=seed, options=options)
        self.resets = getattr(self, "resets", 0) + 1
        self.lit = self.resets % 2 == 0
        return self.render_text(), info


class Gambler(Stairs):
    """Throws the dice of all."""

    def step(self, action: str) -> Step:
        random.random()
        return super().step(action)


class Gossip(Stairs):
    """Tells all copies what it did."""

    told: ClassVar[list[str]] = []

    def step(self, action: str) -> Step:
        self.told.append(action)
        return super().step(action)


class Endless(Stairs):
    """Succeeds without an end."""

    def step(self, action: str) -> Step:
        text, reward, *_ = super().step(action)
        self.is_over = False
        return text, reward, False, False, {"success": True}


class Stingy(Stairs):
    """Pays nothing."""

    def step(self, action: str) -> Step:
        text, _, *rest = super().step(action)
        return text, 0.0, *rest  # type: ignore[return-value]


class Unreachable(Stingy):
    """Pays nothing for random play, and nobody plays better."""

    has_expert = False


class Cheat(Stairs):
    """Has an expert that plays what is no action."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "", ("fly",)


class Hopeless(Stairs):
    """Has an expert that never succeeds."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "", ("off" if self.lit else "on",)


class Misled(TextEnv):
    """Has an expert that plays worse than chance: name the side that is up, in three tries."""

    name, actions, max_actions = "coin", ("heads", "tails"), 3
    instruction = "Which side is up?"

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.seed, self.found, self.tries = seed or 0, False, 0
        return self.render_text(), {}

    @property
    def side(self) -> str:
        return ("heads", "tails")[self.seed % 2]

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.found)
        self.tries += 1
        self.found = action == self.side
        return self.render_text(), float(self.found), self.found, False, {"success": self.found}

    def render_text(self) -> str:
        return f"{self.tries} tries"

    def get_state(self) -> dict[str, Any]:
        return {"seed": self.seed, "found": self.found, "tries": self.tries}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.seed, self.found, self.tries = state["seed"], state["found"], state["tries"]

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        wrong = "heads" if self.side == "tails" else "tails"
        return "", (self.side if self.seed % 8 == 0 else wrong,)


class Loud(Guess):
    """Prints what it does, in whatever process it is."""

    def step(self, action: str) -> Step:
        os.write(1, b"a step\n")
        return super().step(action)


class Parted(Misled):
    """Has an action whose name holds the mark between two actions."""

    actions: tuple[str, ...] = ("heads", "tails", "on || off")  # type: ignore[assignment]


class Counted(Misled):
    """Has an action that is no text."""

    actions: tuple[Any, ...] = ("heads", 3)  # type: ignore[assignment]


class Undecided(Misled):
    """Has actions that raise before they are known."""

    @property
    def actions(self) -> tuple[str, ...]:  # type: ignore[override]
        raise KeyError("no game yet")


class Odometer(ToolEnv):
    """Begins without forgetting how often a tool was called, which only calls of it show."""

    name, instruction, max_actions = "odometer", "Find the door.", 5
    _opened = 0

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        self._door = seed % 50
        return {}

    @property
    def task(self) -> str:
        return f"The door is {self._door}."

    def open(self, door: int) -> str:
        """Open a door.

        Args:
            door: Its number.
        """
        self._opened += 1
        if door == self._door:
            self.end(1.0, success=True)
        return f"Doors opened: {self._opened}."


class Corridor(Odometer):
    """Counts anew in every episode, and its expert writes calls: healthy."""

    wanted = "door"

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        self._opened = 0
        return super().begin(seed, noise_seed)

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "", (self.written("open", **{self.wanted: self._door}),)


class Misspelled(Corridor):
    """Its expert's first call lacks what the tool needs."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        self.wanted = "door" if self.moves else "gate"
        return super().expert_turn(rng, max_actions)


class Mislaid(Corridor):
    """Has a tool that looks for what its own code has mislaid."""

    def read(self, sign: str) -> str:
        """Read a sign.

        Args:
            sign: Which one.
        """
        return {"exit": "1"}[sign]


class Unsolved(Guess):
    """Comes with a solution of every third task: healthy."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        if self.secret % 3:
            raise NoExpertError("this task comes without a solution")
        return super().expert_turn(rng, max_actions)


class Unanswered(Guess):
    """Comes without any solution, which only its expert knows: healthy."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        raise NoExpertError("this task comes without a solution")


class Lettered(Guess):
    """Has one text where a list of them belongs."""

    def vocabulary(self) -> str:
        return "more less"


_RESETS = itertools.count()


class SeedBlind(Stairs):
    """Has another start at every reset, whatever the seed."""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        super().reset(seed=next(_RESETS), options=given.get("options"))
        return self.render_text(), {}


class Abbreviated(Guess):
    """Has its words under another name."""

    def vocab(self) -> tuple[str, ...]:
        return ("more", "less")


class Unheard(Stairs):
    """Has methods that nobody calls by these names, or with these arguments."""

    def exprt(self) -> None: ...

    @property
    def is_lst(self) -> bool:
        return False

    def hindsigth_turn(self, plan: Sequence[str], max_actions: int) -> None: ...

    def vocab(self) -> tuple[str, ...]:
        return ()

    def difficulty_of(self, seed: int, split: str = "train") -> str:
        return "dark" if seed % 2 == 0 else "lit"

    def thought_grounding(self, thought: str) -> float:  # type: ignore[override]
        return 0.0

    def state(self) -> str:
        return ""

    def step_back(self) -> None: ...


class Tired(Odometer):
    """Has a tool that takes its time."""

    seconds = 0.0

    def rest(self) -> str:
        """Rest."""
        time.sleep(self.seconds)
        return "rested"


class Twofold(Guess):
    """Takes all its secrets for one task."""

    def start_key(self) -> str:
        return self.instruction


class Fibber(Stairs):
    """Its expert says what its own judge finds untrue."""

    def expert_turn(self, rng: random.Random, max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "dim", super().expert_turn(rng, max_actions)[1]


class Speechless(Stairs):
    """Has hindsight without words."""

    def hindsight_turn(  # type: ignore[override]
        self, plan: Sequence[str], max_actions: int
    ) -> tuple[str, tuple[str, ...]] | None:
        return None


class Misremembering(Stairs):
    """Its hindsight is untrue."""

    def hindsight_turn(self, plan: Sequence[str], max_actions: int) -> tuple[str, tuple[str, ...]]:
        return "dim", tuple(plan[:max_actions])


class Mirrored(Stairs):
    """Its symmetry changes the light and not the button."""

    def symmetries(self) -> tuple[Symmetry, ...]:
        _, good = super().symmetries()
        return IDENTITY, Symmetry(good.state, str)


class Unselfish(Stairs):
    """Its symmetries lack the identity."""

    def symmetries(self) -> tuple[Symmetry, ...]:
        return super().symmetries()[1:]


class Lopsided(FrozenLake):
    """Slippery ice whose symmetries lack the identity."""

    def symmetries(self) -> tuple[Symmetry, ...]:
        return super().symmetries()[1:]
