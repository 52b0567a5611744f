"""The check of an environment against ``TextEnv``'s contract, before a run depends on it."""

from __future__ import annotations

import copy
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from ragen_pl.envs.base import MAX_TEXT_LENGTH, TextEnv
from ragen_pl.envs.picture import MAX_CELLS, Drawing

_SEEDS = (0, 1, 2)
_STEPS = 12
"""Maximum steps per trial episode; episodes of the shipped environments are not longer."""
_SECONDS = 5.0
"""Time limit, after which the check of a slow environment ends."""
_PARTS = "text, reward, terminated, truncated, info"
_ADVERSARIAL = ("", "no sense", "{}<b>\x00\n", "√ß漢字🧊\u202e", "9" * 5000, "-1", "word " * 4000)
"""Free-text actions and thoughts such as an untrained agent may produce."""

T = TypeVar("T")


def check_contract(env: TextEnv, key: str) -> None:
    """Play a few short episodes on copies and check what the methods return.

    Two copies with different histories take the same steps and must return the same values; a third
    copy shows whether states can be restored. Actions are random, or adversarial texts if actions
    are free text.

    Args:
        env: The environment, which is not changed.
        key: The configuration's key of this environment, for messages.

    Raises:
        ValueError: if a method breaks the contract; the message names the environment, the method,
            what it did and what it must do.
    """
    check_declared(env, key)
    name = f"{key} is {type(env).__name__}"
    deadline = time.monotonic() + _SECONDS
    for seed in _SEEDS if env.actions is not None else range(len(_ADVERSARIAL)):
        _TrialEpisode(env, name, seed).run(deadline)


_FORMER_NAMES = {"is_true": "thought_correct"}
"""Former names of methods, which would be silently ignored."""


def check_declared(env: TextEnv, key: str) -> None:
    """Check the attributes that an environment declares, before any method is called.

    Raises:
        ValueError: if one is wrong; the message has the attribute, its value and what it must be.
    """
    name = f"{key} is {type(env).__name__}"

    def declared(attribute: str, wanted: str) -> Any:
        try:
            return getattr(env, attribute)
        except Exception as error:  # the boundary to user code: any error is theirs
            raise ValueError(
                f"{name}, whose {attribute} raised {type(error).__name__}: {error}; it must be "
                f"{wanted}"
            ) from error

    def check(holds: bool, attribute: str, given: object, wanted: str) -> None:
        if not holds:
            raise ValueError(f"{name}, whose {attribute} is {_short(given)}; it must be {wanted}")

    for old, new in _FORMER_NAMES.items():
        if hasattr(type(env), old):
            raise ValueError(f"{name}, which defines {old}: it is called {new} now")
    wanted = "a short text"
    given = declared("name", wanted)
    check(isinstance(given, str) and bool(given), "name", given, wanted)
    wanted = "an integer of 1 or more: actions that one trajectory may execute"
    given = declared("max_actions", wanted)
    check(type(given) is int and given >= 1, "max_actions", given, wanted)
    wanted = "a tuple of different texts, at least one, or None for free text"
    given = declared("actions", wanted)
    is_tuple = isinstance(given, tuple | list) and all(isinstance(each, str) for each in given)
    differ = is_tuple and 0 < len(given) == len({each.lower() for each in given})
    check(given is None or differ, "actions", given, wanted)


@dataclass(frozen=True, slots=True)
class _Place:
    """The state of a copy and its observation."""

    state: dict[str, Any]
    text: str
    """From ``render_text``."""


class _TrialEpisode:
    """One short episode, played on several copies at once."""

    def __init__(self, env: TextEnv, name: str, seed: int) -> None:
        self.name, self.seed = name, seed
        self.one: TextEnv = self._call(copy.deepcopy, env)
        self.other: TextEnv = self._call(copy.deepcopy, env)
        self.restored: TextEnv = self._call(copy.deepcopy, env)
        self.never_reset: TextEnv = self._call(copy.deepcopy, env)
        self.rng = random.Random(seed)

    def run(self, deadline: float) -> None:
        """Play until the episode ends or a limit of steps or time is reached."""
        self._reset(self.other, self.seed + 1)  # a history of its own
        self._reset(self.restored, self.seed + 2)
        first = self._start(self.one, 0), self._start(self.other, 0)
        self._same(*first, f"reset(seed={self.seed})", "twice", "let the seed decide the start")
        task = self._read("instruction")
        self._check(isinstance(task, str), "instruction", task, "a text: what the task is")
        start = self._place(self.one)
        self._restores(start)
        self._draws(start)
        self._check_symmetries(start)
        self._judges_thoughts()
        for number in range(min(_STEPS, self.one.max_actions)):
            if time.monotonic() > deadline:
                return
            action = self._action(number)
            steps = self._step(self.one, action), self._step(self.other, action)
            after = self._place(self.one)
            self._same(
                (steps[0], after),
                (steps[1], self._place(self.other)),
                f"step({_short(action)})",
                "from equal states with equal noise",
                'draw from options["noise_seed"] alone',
            )
            self._restores(after)
            self._draws(after)
            if steps[0][2] or steps[0][3]:
                self._stays_ended(action, after)
                break
        # Another noise seed: neither it nor the steps so far may change the initial state.
        again = self._start(self.one, 1)
        if again != first[0]:
            _fail(
                self.name,
                f"reset(seed={self.seed})",
                f"gave {_short(again)} after {_short(first[0])}",
                "the seed alone decides the start, whatever the noise_seed and what came before",
            )
        self._restores(start)
        self._names_difficulty()

    def _names_difficulty(self) -> None:
        """Check that ``difficulty_of``, if it is overridden, returns what ``reset`` reports."""
        if type(self.one).difficulty_of is TextEnv.difficulty_of:
            return
        given: Any = self._call(self.one.difficulty_of, self.seed)
        wanted = self._call(TextEnv.difficulty_of, self.one, self.seed)
        self._check(given == wanted, "difficulty_of", given, f"what reset reports, {wanted!r}")

    def _start(self, env: TextEnv, noise: int) -> tuple[str, str]:
        """Reset a copy and return the observation and the state as text."""
        text = self._reset(env, self.seed, noise)
        return text, json.dumps(self._place(env).state, sort_keys=True)

    def _reset(self, env: TextEnv, seed: int, noise: int = 0) -> str:
        given: Any = self._call(env.reset, seed=seed, options={"noise_seed": noise})
        self._check(_are(given, str, dict), "reset", given, "a text and a dict")
        self._check_length("reset", given[0])
        return str(given[0])

    def _step(self, env: TextEnv, action: str) -> tuple[Any, ...]:
        """Take a step and return its five values, with ``success`` in place of ``info``."""
        return self._parts(self._call(env.step, action))

    def _parts(self, given: Any) -> tuple[Any, ...]:
        """Check what a step returned and return it with ``success`` in place of ``info``."""
        self._check(isinstance(given, tuple) and len(given) == 5, "step", given, _PARTS)
        text, reward, terminated, truncated, info = given
        self._check(_are(given, str, Any, Any, Any, dict), "step", given, "a text … and a dict")
        self._check_length("step", text)
        self._check(_is_finite(reward), "step", given, "a finite number as reward")
        for flag, value in (("terminated", terminated), ("truncated", truncated)):
            self._check(_is_bool(value), "step", given, f"a bool as {flag}")
        success = info.get("success")
        self._check(_is_bool(success), "step", info, 'info with a bool "success"')
        self._check(
            not success or terminated,
            "step",
            given,
            '"success" only where it terminates: the task is done, so the episode ends',
        )
        return text, reward, bool(terminated), bool(truncated), bool(success)

    def _place(self, env: TextEnv) -> _Place:
        state = self._call(env.get_state)
        self._check(
            plain_text(state) is not None, "get_state", state, "a dict of plain data (JSON types)"
        )
        text = self._call(env.render_text)
        self._check(isinstance(text, str), "render_text", text, "a text")
        return _Place(json.loads(json.dumps(state)), text)

    def _restores(self, place: _Place) -> None:
        """Check that ``set_state`` brings the third copy from another state to a given one."""
        self._call(self.restored.set_state, copy.deepcopy(place.state))
        found = self._place(self.restored)
        wanted = f"what set_state was given, {_short(place.state)}"
        self._check(found.state == place.state, "get_state", found.state, wanted)
        wanted = (
            f"what it was in that state, {_short(place.text)}: get_state must hold all it shows"
        )
        self._check(found.text == place.text, "render_text", found.text, wanted)

    def _draws(self, place: _Place) -> None:
        """Check that a copy that was never reset draws a recorded state, or nothing."""
        drawing: Any = self._call(self.never_reset.draw, copy.deepcopy(place.state))
        if drawing is None:
            return
        wanted = "a Drawing (ragen_pl.envs.picture), made from the given state alone, or None"
        self._check(isinstance(drawing, Drawing), "draw", drawing, wanted)
        cells = drawing.rows * drawing.columns
        wanted = f"a drawing of 1 to {MAX_CELLS} cells"
        self._check(0 < cells <= MAX_CELLS, "draw", (drawing.rows, drawing.columns), wanted)
        self._call(drawing.svg)

    def _check_symmetries(self, place: _Place) -> None:
        """Check that the images of a state are states, and those of the actions are actions."""
        actions = self._read("actions")
        for symmetry in self._call(self.one.symmetries):
            image = self._call(symmetry.state, copy.deepcopy(place.state))
            self._call(self.restored.set_state, copy.deepcopy(image))
            wanted = f"the symmetric state that set_state was given, {_short(image)}"
            found = self._place(self.restored).state
            self._check(found == json.loads(json.dumps(image)), "get_state", found, wanted)
            images = [self._call(symmetry.action, action) for action in actions or ()]
            wanted = f"symmetries whose actions are a permutation of {actions}"
            self._check(sorted(images) == sorted(actions or ()), "symmetries", images, wanted)

    def _judges_thoughts(self) -> None:
        """Check what the judgments of adversarial thoughts return."""
        actions = tuple(self._read("actions") or _ADVERSARIAL)[:1]
        for thought in _ADVERSARIAL:
            given: Any = self._call(self.one.thought_correct, thought)
            self._check(
                given is None or _is_bool(given), "thought_correct", given, "a bool or None"
            )
            given = self._call(self.one.thought_grounding, thought, actions)
            is_share = given is None or (_is_finite(given) and 0 <= given <= 1)
            self._check(is_share, "thought_grounding", given, "a number in [0, 1] or None")

    def _stays_ended(self, action: str, ended: _Place) -> None:
        """Check that a step after the end raises, or changes nothing and earns nothing."""
        for env, way in ((self.one, ""), (self.restored, ", set by set_state,")):
            try:
                given = env.step(action)
            except Exception:  # any error is a refusal
                continue
            text, reward, terminated, truncated, _ = self._parts(given)
            ends = terminated or truncated
            if ends and not reward and (self._place(env), text) == (ended, ended.text):
                continue
            _fail(
                self.name,
                "step",
                f"after the end{way} returned {_short(given)}",
                "it must change and earn nothing there, or raise a RuntimeError, until the next "
                "reset (ragen_pl.envs.base.refuse_after_end)",
            )

    def _action(self, number: int) -> str:
        actions: tuple[str, ...] | None = self._read("actions")
        wanted = "at least one name while the episode goes on, or None for free text"
        self._check(actions is None or bool(actions), "actions", actions, wanted)
        if actions is None:
            return _ADVERSARIAL[(self.seed + number) % len(_ADVERSARIAL)]
        return self.rng.choice(actions)

    def _same(self, one: object, other: object, method: str, when: str, remedy: str) -> None:
        if one != other:
            did = f"{when} gave {_short(one)} and {_short(other)}"
            _fail(self.name, method, did, f"the two must be equal: {remedy}")

    def _read(self, attribute: str) -> Any:
        try:
            return getattr(self.one, attribute)
        except Exception as error:  # the boundary to user code: any error is theirs
            raise ValueError(
                f"{self.name}, whose {attribute} raised {type(error).__name__}: {error}"
            ) from error

    def _call(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        try:
            return method(*args, **kwargs)
        except Exception as error:  # the boundary to user code: any error is theirs
            given = [*map(_short, args), *(f"{k}={_short(v)}" for k, v in kwargs.items())]
            call = f"{method.__name__}({', '.join(given)})"
            raise ValueError(
                f"{self.name}, whose {call} raised {type(error).__name__}: {error}"
            ) from error

    def _check_length(self, method: str, text: str) -> None:
        wanted = f"a text of at most {MAX_TEXT_LENGTH} characters, not {len(text)}"
        self._check(len(text) <= MAX_TEXT_LENGTH, method, text, wanted)

    def _check(self, holds: bool, method: str, given: Any, wanted: str) -> None:
        if not holds:
            _fail(self.name, method, f"returned {_short(given)}", f"it must return {wanted}")


def _fail(name: str, method: str, did: str, wanted: str) -> None:
    raise ValueError(f"{name}, whose {method} {did}; {wanted}")


def _short(value: object) -> str:
    return f"{value!r:.80}"


def _are(given: Any, *kinds: Any) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == len(kinds)
        and all(
            kind is Any or isinstance(value, kind) for value, kind in zip(given, kinds, strict=True)
        )
    )


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_finite(reward: Any) -> bool:
    return isinstance(reward, Real) and math.isfinite(reward)


def plain_text(state: Any) -> str | None:
    """Return a state as JSON; None if it is no dict of JSON types, as ``get_state`` must return."""
    if not isinstance(state, dict):
        return None
    try:
        text = json.dumps(state, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # such as halves of surrogate pairs
        return None
    return text
