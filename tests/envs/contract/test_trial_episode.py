"""The check of the environment contract: every rule against an environment that breaks it, and no
error for environments that keep them all."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv, refuse_after_end
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.picture import Drawing
from tests.support.toy_env import Lamp, NamedLamp

Step = tuple[Any, Any, Any, Any, Any]


class Stairs(TextEnv):
    """Climb from the seed's stair to the fifth; a step may slip."""

    name, max_actions, instruction = "stairs", 8, "Climb."
    actions: tuple[str, ...] | None = ("up", "down")

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.stair = (seed or 0) % 4
        self.noise = random.Random((options or {}).get("noise_seed"))
        return self.render_text(), {}

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.stair == 5)
        if self.noise.random() < 0.9:
            self.stair += -1 if action == "down" else 1
        success = self.stair == 5
        return (
            self.render_text(),
            np.float32(success),
            success,
            False,
            {"success": np.bool_(success)},
        )

    def render_text(self) -> str:
        return f"stair {self.stair}"

    def get_state(self) -> dict[str, Any]:
        return {"stair": self.stair}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.stair = state["stair"]


class Talker(Stairs):
    """Take any text."""

    actions = None


SOUND = [Bandit(), FrozenLake(), FrozenLake(intended=1 / 3), Sokoban(), Sokoban(split="reference")]


@pytest.mark.parametrize("env", [*SOUND, Stairs(), Talker(), Lamp(), NamedLamp()])
def test_a_sound_environment_is_left_as_it_was(env: TextEnv) -> None:
    before = dict(vars(env))
    check_contract(env, "data.env")
    assert vars(env) == before


def test_every_command_can_afford_it() -> None:
    seconds = []
    for env in SOUND:
        began = time.process_time()
        check_contract(env, "data.env")
        seconds.append(time.process_time() - began)
    assert sum(seconds) / len(seconds) < 0.05


class Seedless(Stairs):
    """Start anywhere."""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        super().reset(**given)
        self.stair = random.randrange(10**6)
        return self.render_text(), {}


class Carrying(Stairs):
    """Go on from where the last episode ended."""

    stair = 0

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        stair = self.stair
        super().reset(**given)
        self.stair = min(stair, 4)
        return self.render_text(), {}


class NoisyStart(Stairs):
    """Let the noise decide the start."""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        super().reset(**given)
        self.stair = given["options"]["noise_seed"]
        return self.render_text(), {}


class Moody(Stairs):
    """Draw from the global generator."""

    def step(self, action: str) -> Step:
        self.noise = random.Random(random.random())
        text, *rest = super().step(action)
        return f"{text} {random.random()}", *rest  # type: ignore[return-value]


class Unrestored(Stairs):
    def set_state(self, state: Mapping[str, Any]) -> None:
        pass


class Forgetful(Stairs):
    """Show what the state does not hold."""

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        self.mood = str(given["seed"])
        return super().reset(**given)

    def render_text(self) -> str:
        return f"{super().render_text()} {self.mood}"


class Immortal(Stairs):
    """Pay again after the end."""

    def step(self, action: str) -> Step:
        if self.stair == 5:
            return self.render_text(), 1.0, True, False, {"success": True}
        return super().step(action)


class Still(Stairs):
    """Hold still after the end."""

    def step(self, action: str) -> Step:
        if self.stair == 5:
            return self.render_text(), 0.0, True, False, {"success": True}
        return super().step(action)


class Drifting(Stairs):
    """Go on after the end, for nothing."""

    def step(self, action: str) -> Step:
        if self.stair >= 5:
            self.stair += 1
            return self.render_text(), 0.0, True, False, {"success": True}
        return super().step(action)


class Revived(Stairs):
    """Forget in ``set_state`` that the episode has ended."""

    ended = False

    def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
        self.ended = False
        return super().reset(**given)

    def step(self, action: str) -> Step:
        refuse_after_end(self, self.ended)
        self.ended = True
        return self.render_text(), 1.0, True, False, {"success": False}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.ended = False


class Speechless(Stairs):
    """Offer no action at the second stair."""

    @property
    def actions(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return () if getattr(self, "stair", 0) == 1 else Stairs.actions


class Triumphant(Stairs):
    """Succeed and go on."""

    def step(self, action: str) -> Step:
        *rest, _ = super().step(action)
        return *rest, {"success": True}  # type: ignore[return-value]


class Growing(Stairs):
    def step(self, action: str) -> Step:
        _, *rest = super().step(action)
        return "x" * 200_000, *rest  # type: ignore[return-value]


class Literal(Talker):
    """Read any text as a number."""

    def step(self, action: str) -> Step:
        int(action)
        return super().step("up")


class Wordy(Talker):
    """Pay long answers in text."""

    def step(self, action: str) -> Step:
        text, reward, *rest = super().step("up")
        return text, str(reward) if len(action) > 4000 else reward, *rest  # type: ignore[return-value]


class Boastful(Stairs):
    """Call every start hard, but not in ``reset``."""

    def difficulty_of(self, seed: int) -> str:
        return "hard"


class Counting(Stairs):
    """Count the steps of all copies in a list of the class, and show the count."""

    steps: ClassVar[list[str]] = []

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps.append(action)
        return f"{len(self.steps)} steps", *super().step(action)[1:]


class Blinkered(Stairs):
    """Draw the current state in place of the given one, which needs a reset."""

    def draw(self, state: Mapping[str, Any]) -> Drawing:
        return Drawing(1, self.stair + 1, (0, 0, 0), ())


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Blinkered, r"draw\(\{'stair': 0\}\) raised AttributeError"),
        (Boastful, r"difficulty_of returned 'hard'; it must return what reset reports, ''"),
        (Seedless, r"reset\(seed=0\) twice gave .* the two must be equal: let the seed decide"),
        (Carrying, r"reset\(seed=0\) gave .*; the seed alone decides .* and what came before"),
        (NoisyStart, r"reset\(seed=0\) gave .*; the seed alone decides the start, whatever the no"),
        (Moody, r"step\('\w+'\) from equal states with equal noise gave .*noise_seed"),
        (Counting, r"step\('\w+'\) from .*keep in get_state all that step depends on \(class attr"),
        (Unrestored, r"get_state returned \{'stair': \d\}; .* set_state was given, \{'stair': 0\}"),
        (Forgetful, r"render_text returned 'stair \d \d'; .*get_state must hold all it shows"),
        (Immortal, r"step after the end returned .*; it must change and earn nothing there, or"),
        (Drifting, r"step after the end returned .*; it must change and earn nothing there, or"),
        (Revived, r"step after the end, set by set_state, returned .*; it must change and earn"),
        (Speechless, r"actions returned \(\); it must return at least one name while the episode"),
        (Triumphant, r'step returned .*; it must return "success" only where it terminates'),
        (Growing, r"step returned 'xxx.*; it must return a text of at most 100000 characters"),
        (Literal, r"step\(''\) raised ValueError: invalid literal"),
        (Wordy, r"step returned .*'[01]\.0'.*; it must return a finite number as reward"),
    ],
)
def test_a_broken_rule_is_named(kind: type[TextEnv], told: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.env is {kind.__name__}, whose {told}"):
        check_contract(kind(), "data.env")


def returning(method: str, value: Any) -> TextEnv:
    return type("Odd", (Stairs,), {method: lambda *_, **__: value})()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("method", "value", "told"),
    [
        ("reset", "a text alone", r"whose reset returned 'a text alone'; .* a text and a dict"),
        ("symmetries", [len], r"whose symmetries returned \[<.*Symmetry\(state=…, action=…\)"),
        ("symmetries", (), r"whose symmetries returned \(\); .*at least IDENTITY"),
        ("symmetries", None, r"whose symmetries returned None; it must return a list of ragen_pl"),
        ("get_state", None, r"whose get_state returned None; .* plain data"),
        ("get_state", {"at": {1, 2}}, r"whose get_state returned .*\{1, 2\}.* plain data"),
        ("get_state", {"a": [np.int64(3)]}, r"state\['a'\]\[0\] is a int64: take its item\(\)$"),
        ("get_state", {"a": np.ones(2)}, r"state\['a'\] is a ndarray: take its tolist\(\)$"),
        ("get_state", {"a": float("nan")}, r"state\['a'\] is nan, which JSON does not have$"),
        ("get_state", {(1, 2): 3}, r"state has the key \(1, 2\), a tuple: make it a text$"),
        ("get_state", {"r": random.Random(1)}, r"state\['r'\] is a Random: the generator of later"),
        (
            "reset",
            ("a", {"difficulty": float("nan")}),
            r"returned \{'difficulty': nan\}; .* text or",
        ),
        ("reset", ("a", {"difficulty": True}), r"returned \{'difficulty': True\}; .* text or a"),
        ("reset", ("a", {"optimal_length": "5"}), r"\{'optimal_length': '5'\}; .*an integer of 1"),
        ("reset", ("a", {"optimal_length": -2}), r"\{'optimal_length': -2\}; .*an integer of 1"),
        ("render_text", None, r"whose reset returned \(None, \{\}\)"),
        ("step", ("a", 1.0, True, {"success": True}), r"step returned .*text, reward, terminated,"),
        ("draw", np.zeros(2), r"whose draw returned array.*; it must return a Drawing"),
        ("draw", Drawing(0, 4, (0, 0, 0), ()), r"draw returned \(0, 4\); .* of 1 to 2500 cells"),
        ("draw", Drawing(51, 50, (0, 0, 0), ()), "a drawing of 1 to 2500 cells"),
        ("draw", Drawing(1, 1, (0, 0, 256), ()), r"whose svg\(\) raised ValueError"),
        ("step", (1, 1.0, True, False, {}), "a text … and a dict"),
        ("step", ("a", "1", True, False, {"success": True}), "a finite number as reward"),
        ("step", ("a", float("nan"), True, False, {"success": True}), "a finite number as reward"),
        ("step", ("a", 1.0, "no", False, {"success": True}), "a bool as terminated"),
        ("step", ("a", 1.0, True, None, {"success": True}), "a bool as truncated"),
        ("step", ("a", 1.0, True, False, {}), 'info with a bool "success"'),
        ("step", ("a", 1.0, True, False, {"success": 1}), 'info with a bool "success"'),
    ],
)
def test_what_comes_back_wrong_is_named(method: str, value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^data\.env is Odd, {'.*' + told}"):
        check_contract(returning(method, value), "data.env")


@pytest.mark.parametrize("method", ["reset", "step", "get_state", "set_state", "render_text"])
def test_what_is_raised_is_told_in_a_line(method: str) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("board")

    env = type("Broken", (Stairs,), {method: fails})()
    with pytest.raises(
        ValueError, match=r"^data\.env is Broken, whose .* raised KeyError: 'board' \(.*\.py:\d+\)$"
    ):
        check_contract(env, "data.env")


def test_a_slow_environment_is_not_walked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragen_pl.envs.contract.trial_episode._SECONDS", 0.0)
    monkeypatch.setattr(Stairs, "step", raising)
    check_contract(Stairs(), "data.env")


def test_a_slow_environment_is_reset_for_one_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = set[int]()

    class Reset(Stairs):
        def reset(self, **given: Any) -> tuple[str, dict[str, Any]]:
            seeds.add(given["seed"])
            return super().reset(**given)

    monkeypatch.setattr("ragen_pl.envs.contract.trial_episode._SECONDS", 0.0)
    check_contract(Reset(), "data.env")
    assert seeds == {0, 1, 2}  # the first episode's own, and those of its copies before it


def test_an_environment_may_hold_still_after_the_end() -> None:
    check_contract(Still(), "data.env")


def test_what_an_environment_says_of_itself_may_depend_on_its_arguments() -> None:
    class Measured(Stairs):
        instruction = vars(TextEnv)["instruction"]  # as if Stairs had none

        def __init__(self, steps: int) -> None:
            super().__init__()
            self.name, self.instruction = f"stairs of {steps}", f"Climb {steps} steps."
            self.max_actions = 2 * steps

    assert not hasattr(TextEnv(), "instruction")  # type: ignore[abstract]
    env = Measured(3)
    check_contract(env, "data.env")
    assert env.instruction == "Climb 3 steps."


def raising(*_: Any) -> Any:
    raise AttributeError("not there")


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("name", 5, "name is 5; it must be a short text"),
        (
            "name",
            property(raising),
            "name raised AttributeError: not there; .*before the first reset",
        ),
        ("max_actions", "5", "max_actions is '5'; it must be an integer of 1 or more"),
        ("max_actions", 0, "max_actions is 0; it must be"),
        ("actions", "ab", "actions is 'ab'; it must be a tuple of different texts"),
        ("actions", ("up", "Up"), "actions have 'up' and 'Up', which are one for a reader"),
        ("actions", ("up", "up"), "actions have 'up' and 'up', which are one for a reader"),
        ("actions", (), r"actions is \(\); it must be"),
        ("actions", (0, 1), r"actions is \(0, 1\); it must be"),
        ("get_state", None, "get_state is None; it must be a method$"),
        ("expert_turn", (), r"expert_turn is \(\); it must be a method, or left out"),
        ("is_lost", lambda env: False, "is_lost is a method: put @property above it, or assign"),
        ("instruction", lambda env: "", "instruction is a method: put @property above it"),
        ("instruction", vars(TextEnv)["instruction"], "does not define instruction: every"),
        ("set_state", TextEnv.set_state, "does not define set_state: every environment must"),
        ("reset", gymnasium.Env.reset, "does not define reset: every environment must"),
        ("is_true", raising, "defines is_true: it is called thought_correct now"),
        ("instruction", None, "instruction returned None; it must return a text"),
        ("instruction", property(raising), "instruction raised AttributeError: not there"),
    ],
)
def test_what_a_class_says_of_itself_is_looked_at(attribute: str, value: Any, told: str) -> None:
    kind = type("Odd", (Stairs,), {attribute: value})
    with pytest.raises(ValueError, match=f"^data.env is Odd, w(hose|hich) {told}"):
        check_contract(kind(), "data.env")
