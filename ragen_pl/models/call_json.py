"""Calls of tools whose arguments a chat template writes as JSON, alone or in a list of calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ragen_pl.models.call_syntax import CallSyntax

CALL_ID = "call00000"
"""The id of every call and result; templates of Mistral's want nine letters or digits."""
_PROBED = re.compile(
    r"(.*)tool0mark(.*)(\{\s*\"argument0mark\"\s*:\s*\"value0mark\"\s*\})(.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ListedCall:
    """The texts of a call in a list, around its name and its arguments, which are JSON.

    Such as ``[{"name": "``, NAME, ``", "arguments": ``, ARGUMENTS, ``, "id": "call00000"}]``. In
    what is read the id may be missing, or be any other one.
    """

    opened: str
    named: str
    ended: str

    def read(self, text: str, tools: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a call as JSON with ``name`` and ``arguments``; any other text as it is, which the
        environment answers as a wrong call."""
        try:
            (given,) = json.loads(text)
            call = {"name": given["name"], "arguments": given.get("arguments", {})}
            return _dumped(call)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return text

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as the template writes it."""
        return f"{self.opened}{name}{self.named}{_dumped(arguments)}{self.ended}"

    def marked(self, text: str) -> tuple[str, ...]:
        """Return the text alone: its brackets and quotes are no tokens of the template's own."""
        return (text,)


@dataclass(frozen=True, slots=True)
class NamedCall:
    """The texts between the name of a tool, the id of the call and the arguments, which are JSON.

    Such as NAME, ``[ARGS]``, ARGUMENTS, or NAME, ``[CALL_ID]``, ID, ``[ARGS]``, ARGUMENTS. The id
    may be missing in what is read, or be any other one.
    """

    identified: str
    """Between the name and the id; empty if calls have none."""
    valued: str
    """Before the arguments."""

    def read(self, text: str, tools: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a call as JSON with ``name`` and ``arguments``; None if the text is none.

        Arguments that are no JSON stay a text, which the environment answers as a wrong call.
        """
        name, *others = self.marked(text)
        name = name.strip()
        if not others or not name or len(name.split()) > 1:
            return None
        body = others[-1].strip()
        try:
            return _dumped({"name": name, "arguments": json.loads(body) if body else {}})
        except (ValueError, RecursionError):
            return _dumped({"name": name, "arguments": body})

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as the template writes it."""
        given = f"{self.identified}{CALL_ID}" if self.identified else ""
        return f"{name}{given}{self.valued}{_dumped(arguments)}"

    def marked(self, text: str) -> tuple[str, ...]:
        """Split a call at the texts between name, id and arguments; the text alone if it is no
        call."""
        head, valued, body = text.partition(self.valued.strip())
        if not valued:
            return (text,)
        name, identified, given = head.partition(self.identified.strip() or valued)
        return (name, identified, given, valued, body) if identified else (head, valued, body)


def json_form_of(text: str) -> tuple[str, CallSyntax, str] | None:
    """Return the opening of a call, what stands within it and its closing; None if the call is in
    no list, and its name does not stand before its arguments alone.

    Args:
        text: A call of ``tool0mark`` whose ``argument0mark`` is ``value0mark``.
    """
    match = _PROBED.fullmatch(text)
    if match is None:
        return None
    before, between, _, after = match.groups()
    opening, opened, named = before.rpartition("[{")
    if opened and re.fullmatch(r'\s*"name"\s*:\s*"', named):
        closed, ended, closing = after.partition("}]")
        if not opening.strip() or not ended:
            return None
        spaces = opening[len(opening.rstrip()) :]
        listed = ListedCall(f"{spaces}{opened}{named}", between, f"{closed}{ended}")
        return opening.strip(), listed, closing.rstrip()
    if not before.strip() or not between.strip() or '"' in between:
        return None
    identified, has_id, valued = between.partition(CALL_ID)
    syntax = NamedCall(identified, valued) if has_id else NamedCall("", between)
    return before.lstrip(), syntax, after.rstrip()


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
