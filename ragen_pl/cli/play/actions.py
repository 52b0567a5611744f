"""What a person is told of the actions: their names, or the tools and how they are called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ragen_pl.envs.boundary import CheckedEnv, calling


def actions_of(env: CheckedEnv) -> str:
    """Return the names of the actions, a line for each tool with its arguments, or what the
    environment says of its free text."""
    actions = env.actions
    if actions is not None:
        return ", ".join(actions)
    with calling("tools"):
        lines = [_line(tool["function"]) for tool in env.env.tools]
    if not lines:
        with calling("actions_text"):
            return env.env.actions_text
    samples = env.sample_actions()
    example = f", such as {samples[0]}" if samples else ""
    return "\n".join((f"one call of a tool{example}", *lines))


def _line(tool: Mapping[str, Any]) -> str:
    parameters: Mapping[str, Any] = tool.get("parameters", {})
    required = parameters.get("required", ())
    arguments = [
        _argument(name, kind, is_needed=name in required)
        for name, kind in parameters.get("properties", {}).items()
    ]
    said = " ".join(str(tool.get("description", "")).split())
    return f"{tool['name']}({', '.join(arguments)})" + (f": {said}" if said else "")


def _argument(name: str, kind: Any, *, is_needed: bool) -> str:
    shown = f"{name}: {told}" if (told := _kind(kind)) else name
    if is_needed:
        return shown
    has_default = isinstance(kind, Mapping) and "default" in kind
    return f"{shown} = {json.dumps(kind['default']) if has_default else '…'}"


def _kind(kind: Any) -> str:
    """Return a JSON schema in words; empty if it does not say."""
    if not isinstance(kind, Mapping):  # JSON Schema allows true and false
        return ""
    if "enum" in kind:
        return " or ".join(json.dumps(each) for each in kind["enum"])
    types = kind.get("type", ())
    told = " or ".join([types] if isinstance(types, str) else [str(each) for each in types])
    items = _kind(kind.get("items"))
    return told.replace("array", f"list of {items}" if items else "list")
