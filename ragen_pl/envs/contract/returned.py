"""What an environment's methods return, checked; a ``ValueError`` tells what is wrong with it."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn, TypeVar

import numpy as np

from ragen_pl.envs.base import MAX_TEXT_LENGTH, TextEnv
from ragen_pl.envs.contract.differences import difference
from ragen_pl.envs.contract.plain_data import plain_text, wanted_of_state
from ragen_pl.envs.step_result import StepResult
from ragen_pl.runtime.user_faults import place_of_fault

WANTED_SYMMETRIES = (
    "a list of ragen_pl.envs.base.Symmetry(state=…, action=…), at least IDENTITY, which is one"
)
WANTED_VOCABULARY = "a list of texts"
_SHOWN = 80
"""Characters shown of a value."""
_PARTS = "text, reward, terminated, truncated, info"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """The state of an environment and its observation."""

    state: dict[str, Any]
    observation: str
    """From ``render_text``."""


def call(name: str, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a method.

    Args:
        name: The environment's key and class, for messages.

    Raises:
        ValueError: if it raises; the message has the call and what it raised.
    """
    try:
        return method(*args, **kwargs)
    except Exception as error:  # the boundary to user code: any error is theirs
        given = [*map(short, args), *(f"{k}={short(v)}" for k, v in kwargs.items())]
        called = f"{getattr(method, '__name__', 'it')}({', '.join(given)})"
        place = place_of_fault(error)
        raise ValueError(
            f"{name}, whose {called} raised {type(error).__name__}: {error}"
            + (f" ({place})" if place else "")
        ) from error


def copy_of(env: TextEnv, name: str) -> TextEnv:
    """Return a deep copy.

    Raises:
        ValueError: if there is none; the message has the attribute that cannot be copied.
    """
    try:
        return copy.deepcopy(env)
    except Exception as error:  # the boundary to user code: any error is theirs
        held = [key for key, value in vars(env).items() if not _can_be_copied(value)]
        cause = f" its attribute {held[0]}" if held else ""
        raise ValueError(
            f"{name}, of which every trajectory plays a copy, but copy.deepcopy cannot copy"
            f"{cause}: {type(error).__name__}: {error}; create what cannot be copied (a lock, a "
            "connection, an open file) when it is needed, or leave it out in __deepcopy__"
        ) from error


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # the boundary to user code: any error is theirs
        return False
    return True


def outcome_of(name: str, given: Any) -> StepResult:
    """Return what a step returned, checked."""
    require(isinstance(given, tuple) and len(given) == 5, name, "step", given, _PARTS)
    text, reward, terminated, truncated, info = given
    are_right = isinstance(text, str) and isinstance(info, dict)
    require(are_right, name, "step", given, "a text … and a dict")
    require_length(name, "step", text)
    require(is_finite(reward), name, "step", given, "a finite number as reward")
    for flag, value in (("terminated", terminated), ("truncated", truncated)):
        require(is_bool(value), name, "step", given, f"a bool as {flag}")
    success = info.get("success")
    require(is_bool(success), name, "step", info, 'info with a bool "success"')
    require(
        not success or bool(terminated),
        name,
        "step",
        given,
        '"success" only where it terminates: the task is done, so the episode ends',
    )
    return StepResult(text, reward, bool(terminated), bool(truncated), bool(success))


def place_of(name: str, env: TextEnv) -> Place:
    """Return the state of an environment and its observation, which must not change it."""
    state = _state_of(name, env)
    text: Any = call(name, env.render_text)
    require(isinstance(text, str), name, "render_text", text, "a text")
    after = _state_of(name, env)
    if after != state:
        again = _state_of(name, env)
        method = "render_text" if again == after else "get_state"
        fail(
            name,
            method,
            f"changes the state, at {difference(state, after, 'state')}",
            "it is only a question: let step alone change the state",
        )
    return Place(state, text)


def _state_of(name: str, env: TextEnv) -> dict[str, Any]:
    given: Any = call(name, env.get_state)
    text = plain_text(given)
    if text is None:
        fail(
            name,
            "get_state",
            f"returned {short(given)}",
            f"it must return {wanted_of_state(given)}",
        )
    state: dict[str, Any] = json.loads(text)
    return state


def require_length(name: str, method: str, text: str) -> None:
    """Check that a text fits some model's context."""
    wanted = f"a text of at most {MAX_TEXT_LENGTH} characters, not {len(text)}"
    require(len(text) <= MAX_TEXT_LENGTH, name, method, text, wanted)


def require(holds: bool, name: str, method: str, given: Any, wanted: str) -> None:
    """Fail unless a returned value is right."""
    if not holds:
        fail(name, method, f"returned {short(given)}", f"it must return {wanted}")


def require_same(
    name: str, method: str, given: object, other: object, did: str, wanted: str
) -> None:
    """Fail unless a value is equal to another; the message says where they differ.

    Args:
        given: Plain data, or mappings of it by what it is.
        other: What it is compared with.
        did: What the method did.
        wanted: What it must do.
    """
    if given != other:
        fail(name, method, did, f"{wanted}; they differ at {difference(given, other)}")


def fail(name: str, method: str, did: str, wanted: str) -> NoReturn:
    """Raise the error of a method that did something else than it must."""
    raise ValueError(f"{name}, whose {method} {did}; {wanted}")


def short(value: object) -> str:
    """Return a value as text, of a long one the beginning and an ellipsis."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def is_bool(value: Any) -> bool:
    """Return whether a value is a bool, numpy's included."""
    return isinstance(value, bool | np.bool_)


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)
