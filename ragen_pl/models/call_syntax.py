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

    def write(self, call: str) -> str:
        """Return a call in JSON as the template writes it, without opening and closing; any other
        text as it is."""
        ...

    def marked(self, text: str) -> tuple[str, ...]:
        """Split what stands there at the texts that the template has within a call; these have odd
        indices."""
        ...


def parts_of(call: str) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the arguments of a call in JSON; None if the text is none."""
    try:
        given = json.loads(call)
        return str(given["name"]), dict(given["arguments"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
