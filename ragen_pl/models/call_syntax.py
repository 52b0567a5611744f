"""What a call of a tool consists of, in the form that a chat template has for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol


class CallSyntax(Protocol):
    """What stands between the opening and the closing of a call, if it is no JSON object alone."""

    def read(self, text: str, tools: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a call as JSON with ``name`` and ``arguments``; None if the text is none.

        Args:
            text: What stands between the opening and the closing of a call.
            tools: JSON schemas of the tools.
        """
        ...

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as the template writes it, without opening and closing."""
        ...

    def marked(self, text: str) -> tuple[str, ...]:
        """Split what stands there at the texts that the template has within a call; these have odd
        indices."""
        ...


def written_call(call: str, syntax: CallSyntax) -> str:
    """Return a call in JSON as the template writes it; any other text as it is."""
    try:
        given = json.loads(call)
        name, arguments = str(given["name"]), dict(given["arguments"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return call
    return syntax.write(name, arguments)
