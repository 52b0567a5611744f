"""Walk an environment through its contract before a run rests on it."""

from __future__ import annotations

import copy
import json
import math
from numbers import Real
from typing import Any

from ragen_pl.envs.base import TextEnv

_STEP = ("text", "reward", "terminated", "truncated", "info")


def check_contract(env: TextEnv, key: str) -> None:
    """Take one step from one start, on a copy, and look at what comes back; what the environment
    raises is not caught.

    Args:
        env: The environment.
        key: Of the configuration that names it.

    Raises:
        ValueError: naming the method, and what it returned in place of what.
    """
    env, name = copy.deepcopy(env), f"{key} is {type(env).__name__}"
    given: Any = env.reset(seed=0, options={"noise_seed": 0})
    _check(_are(given, str, dict), name, "reset", given, "a text and a dict")
    state = env.get_state()
    _check(_is_plain(state), name, "get_state", state, "a dict of plain data (JSON types)")
    env.set_state(state)
    again = env.get_state()
    _check(again == state, name, "get_state", again, f"what set_state was given, {state!r}")
    if not env.actions:  # free text: what would be understood is not known
        return
    given = env.step(env.actions[0])
    _check(isinstance(given, tuple) and len(given) == 5, name, "step", given, ", ".join(_STEP))
    _check(_are(given, str, Any, Any, Any, dict), name, "step", given, "a text … and a dict")
    _check(_is_finite(given[1]), name, "step", given, "a finite number as reward")
    success = given[4].get("success")
    _check(success in (True, False), name, "step", given[4], 'info with a bool "success"')


def _are(given: Any, *kinds: Any) -> bool:
    return (
        isinstance(given, tuple)
        and len(given) == len(kinds)
        and all(
            kind is Any or isinstance(value, kind) for value, kind in zip(given, kinds, strict=True)
        )
    )


def _is_finite(reward: Any) -> bool:
    return isinstance(reward, Real) and math.isfinite(reward)


def _is_plain(state: Any) -> bool:
    try:
        json.dumps(state)
    except (TypeError, ValueError):
        return False
    return isinstance(state, dict)


def _check(holds: bool, name: str, method: str, given: Any, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}, whose {method} returned {given!r:.80}; it must return {wanted}")
