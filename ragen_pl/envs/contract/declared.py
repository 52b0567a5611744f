"""The check of what an environment's class declares, before any method is called."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import gymnasium

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract.returned import short

_FORMER_NAMES = {"is_true": "thought_correct"}
"""Former names of methods, which would be silently ignored."""
_METHODS = (
    "reset",
    "step",
    *(
        name
        for name, value in vars(TextEnv).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
    ),
)
_NEEDED = ("instruction", "reset", "step", "get_state", "set_state", "render_text")
_VALUES = (
    *("name", "actions", "max_actions", "instruction", "actions_text"),
    *("tools", "has_expert", "is_lost", "has_features"),
)


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
                f"{wanted}, before the first reset, too"
            ) from error

    def check(holds: bool, attribute: str, given: object, wanted: str) -> None:
        if not holds:
            raise ValueError(f"{name}, whose {attribute} is {short(given)}; it must be {wanted}")

    for old, new in _FORMER_NAMES.items():
        if hasattr(type(env), old):
            raise ValueError(f"{name}, which defines {old}: it is called {new} now")
    for needed in _NEEDED:
        if _is_inherited(env, needed):
            raise ValueError(
                f"{name}, which does not define {needed}: every environment must "
                "(docs/extending.md has a whole one)"
            )
    for value in _VALUES:
        if isinstance(inspect.getattr_static(type(env), value, None), FunctionType):
            raise ValueError(
                f"{name}, whose {value} is a method: put @property above it, or assign the value"
            )
    for method in _METHODS:
        wanted = "a method" if method in _NEEDED else "a method, or left out"
        given = declared(method, wanted)
        check(callable(given), method, given, wanted)
    wanted = "a short text"
    given = declared("name", wanted)
    check(isinstance(given, str) and bool(given), "name", given, wanted)
    wanted = "an integer of 1 or more: actions that one trajectory may execute"
    given = declared("max_actions", wanted)
    check(type(given) is int and given >= 1, "max_actions", given, wanted)
    wanted = "a tuple of different texts, at least one, or None for free text"
    given = declared("actions", wanted)
    is_tuple = isinstance(given, tuple | list) and all(isinstance(each, str) for each in given)
    check(given is None or (is_tuple and len(given) > 0), "actions", given, wanted)
    _check_distinct(given or (), name)


def _check_distinct(actions: Iterable[str], name: str) -> None:
    """Check that no two actions differ in case at most, since answers are read without it."""
    known: dict[str, str] = {}
    for action in actions:
        other = known.get(action.lower())
        if other is not None:
            raise ValueError(
                f"{name}, whose actions have {short(other)} and {short(action)}, which are one for "
                "a reader who does not look at case: they must be different texts"
            )
        known[action.lower()] = action


def _is_inherited(env: TextEnv, name: str) -> bool:
    """Return whether an environment has no definition of its own of what it needs."""
    if name in vars(env):
        return False
    bases = (vars(TextEnv).get(name), vars(gymnasium.Env).get(name))
    return inspect.getattr_static(type(env), name, None) in [each for each in bases if each]
