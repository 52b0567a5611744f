"""The check of what an environment's class declares, before any method is called."""

from __future__ import annotations

from typing import Any

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.returned import short

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
            raise ValueError(f"{name}, whose {attribute} is {short(given)}; it must be {wanted}")

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
