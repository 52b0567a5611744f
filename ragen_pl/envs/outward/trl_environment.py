"""Environments as classes for TRL's ``environment_factory``; TRL itself is not imported."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Literal

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.outward.episode import OutwardEpisode

_MOST_NAMED = 32
"""Most actions that the tool's schema lists one by one."""
_FAILED = "The environment failed. The episode has ended."
_ENDED = "The episode has ended."
_TRLS = ("reset", "get_reward")
"""Methods that TRL calls itself."""
_TYPES: Mapping[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}


class TRLEnvironment:
    """An environment as TRL's ``GRPOTrainer`` uses it: a subclass is an ``environment_factory``.

    ``trl_environment`` makes the subclass, with the tool ``act`` or, of an environment of tools,
    with these. TRL makes one instance per
    rollout of a batch and resets it with the columns of the dataset's row.

    ``reset`` needs the column ``seed``, which decides the initial state: TRL repeats a row for all
    members of a group, so they share their start. Everything random later is an instance's own,
    also between ranks, and repeats if the training is repeated. ``get_reward`` is the sum of the
    environment's rewards; it is None, which TRL leaves out, if the environment failed.
    """

    _prototype: ClassVar[TextEnv]
    _instances: ClassVar[count[int]]
    _has_tools: ClassVar[bool]
    act: ClassVar[Callable[[TRLEnvironment, str], str]]
    """Missing where the environment has tools of its own."""

    def __init__(self) -> None:
        self._episode = OutwardEpisode(self._prototype)
        self._number, self._num_resets = next(self._instances), 0
        self._reward: float | None = 0.0

    def reset(self, seed: int | None = None, **row: Any) -> str:
        """Begin the episode that a row's seed decides; return the task and the first observation.

        Raises:
            ValueError: if the row has no seed.
        """
        if seed is None:
            raise ValueError(
                f"{type(self).__name__}.reset got a row without a seed (it has "
                f"{', '.join(row) or 'no columns'}): give the dataset an integer column seed, as "
                "ragen_pl.envs.outward.seed_rows does, so that the members of a group share their "
                "start"
            )
        noise_seed = self._noise_seed()
        self._num_resets += 1
        try:
            task, reply = self._episode.begin(int(seed), noise_seed)
        except EnvError:
            self._reward = None
            return _FAILED
        self._reward = 0.0
        how = (
            f"Call one tool at a time, at most {task.max_actions} times."
            if self._has_tools
            else f"Actions: {task.actions_text}\n"
            f"Take one action with each call of the tool act, at most {task.max_actions}."
        )
        return f"{task.instruction.rstrip()}\n{how}\n{reply.text}"

    def _noise_seed(self) -> int:
        """Return a seed that differs between processes, instances and resets."""
        own = f"trl {os.environ.get('RANK', '0')} {self._number} {self._num_resets}"
        return int.from_bytes(hashlib.sha256(own.encode()).digest()[:4], "big") >> 1

    def _take(self, action: object) -> str:
        """Take an action and return what the agent is told; a call after the end earns nothing."""
        if not self._episode.goes_on:
            return _ENDED
        try:
            reply = self._episode.act(str(action))
        except EnvError:
            self._reward = None
            return _FAILED
        assert self._reward is not None
        self._reward += reply.reward
        if not reply.done:
            return reply.text
        return f"{reply.text}\n{_ENDED}{' It is a success.' if reply.success else ''}"

    def get_reward(self) -> float | None:
        """Return the sum of the rewards since the reset; None if the environment failed."""
        return self._reward


def trl_environment(env: TextEnv, name: str | None = None) -> type[TRLEnvironment]:
    """Make a class for TRL's ``environment_factory`` of an environment.

    The tools of a ``ToolEnv`` are the class's, with their own arguments and descriptions.

    Args:
        env: The environment; every instance plays a copy.
        name: Name of the class, which is also that of the reward in TRL's logs; None takes the
            environment's.

    Raises:
        ValueError: if a tool has the name of one of TRL's methods.
    """
    functions = [dict(tool["function"]) for tool in env.tools]
    taken = next((each["name"] for each in functions if each["name"] in _TRLS), None)
    if taken is not None:
        raise ValueError(
            f"{type(env).__name__} has a tool named {taken}, which is a method that TRL calls "
            "itself: rename the tool"
        )
    tools = {str(each["name"]): _own_tool(each) for each in functions} or {"act": _tool(env)}
    title = "".join(map(str.capitalize, re.split(r"[\W_]+", env.name))) + "Environment"
    attributes = {
        "__doc__": f"{env.name} for TRL's environment_factory.",
        "__module__": __name__,
        "_prototype": env,
        "_instances": count(),
        "_has_tools": bool(functions),
        **tools,
    }
    return type(name or title, (TRLEnvironment,), attributes)


def _tool(env: TextEnv) -> Callable[[TRLEnvironment, str], str]:
    """Make the tool; transformers reads its schema from the docstring and the annotations."""

    def act(self: TRLEnvironment, action: str) -> str:
        return self._take(action)

    known = env.actions
    # Names that the initial state decides are told with the task.
    is_fixed = known is not None and known == getattr(type(env), "actions", None)
    is_named = is_fixed and known is not None and len(known) <= _MOST_NAMED
    what = "one of the actions" if known is not None else "the action, in words"
    act.__doc__ = (
        "Take one action in the environment.\n\n"
        f"Args:\n    action: {what}\n\n"
        "Returns:\n    What happens next.\n"
    )
    # A type made at run time: the names differ between environments.
    kind: Any = Literal[tuple(known)] if is_named and known is not None else str
    act.__annotations__ = {"action": kind, "return": str}
    return act


def _own_tool(function: Mapping[str, Any]) -> Callable[..., str]:
    """Make a tool that calls one of the environment's, of its JSON schema.

    Any arguments are taken: wrong ones are answered by the environment.
    """
    name, schema = str(function["name"]), function.get("parameters", {})
    kinds: Mapping[str, Any] = schema.get("properties", {})

    def call(self: TRLEnvironment, **arguments: Any) -> str:
        return self._take(json.dumps({"name": name, "arguments": arguments}, default=str))

    hints = {key: _type_of(kind) for key, kind in kinds.items()}
    required = schema.get("required", ())
    parameters = [
        inspect.Parameter(
            key,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if key in required else kind.get("default"),
            annotation=hints[key],
        )
        for key, kind in kinds.items()
    ]
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [own, *parameters], return_annotation=str
    )
    call.__annotations__ = {**hints, "return": str}
    call.__name__ = name
    described = (f"    {key}: {_line(kind.get('description', key))}" for key, kind in kinds.items())
    args = "\n".join(("Args:", *described)) + "\n\n" if kinds else ""
    told = _line(function.get("description", name))
    call.__doc__ = f"{told}\n\n{args}Returns:\n    What happens next.\n"
    return call


def _line(text: Any) -> str:
    return " ".join(str(text).split())


def _type_of(kind: Mapping[str, Any]) -> Any:
    """Return the type of a JSON schema; any where it is none of the simple ones."""
    if "enum" in kind:
        return Literal[tuple(kind["enum"])]
    options = [_type_of(each) for each in kind.get("anyOf", ()) if each.get("type") != "null"]
    if len(options) == 1:
        return options[0] | None
    if kind.get("type") == "array":
        return list[_type_of(kind.get("items", {}))]  # type: ignore[misc]  # made at run time
    return _TYPES.get(str(kind.get("type")), Any)


def seed_rows(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return rows of a dataset for TRL, one for each seed: an empty prompt, to which TRL appends
    what ``reset`` returns, and the seed."""
    return [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in seeds]
