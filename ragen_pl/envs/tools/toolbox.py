"""``Toolbox``: tools that an environment offers beside its own methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ragen_pl.envs.tools.schema import ToolSchema, own_methods, schema_of


class ToolUnavailableError(Exception):
    """A tool that cannot be reached at all, such as a server that has ended.

    It ends the trajectory as an error of the environment. What a tool says of a call, errors
    included, is an observation instead.
    """


class Toolbox:
    """Tools for an agent: by default the public methods of a subclass, which return texts.

    It is copied with its environment, so it holds settings alone; what is large or runs, such as an
    index or a process, belongs to the module and is opened when it is first needed.
    """

    is_repeatable = True
    """Whether equal calls give equal results, so that a state is restored by calling again. Of
    other toolboxes the results are a part of the state."""

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return what the agent is told of the tools.

        Raises:
            ValueError: if a public method cannot be a tool.
        """
        return _schemas_of(type(self))  # type: ignore[arg-type]  # a class can be hashed

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool with arguments that its schema allows.

        Raises:
            ToolUnavailableError: if no tool of the box can be reached.
            Exception: whatever the tool raises; the agent is told.
        """
        return str(getattr(self, name)(**arguments))


@lru_cache(maxsize=64)
def _schemas_of(kind: type[Toolbox]) -> tuple[ToolSchema, ...]:
    return tuple(schema_of(method) for method in own_methods(kind, Toolbox))
