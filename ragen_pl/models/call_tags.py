"""Calls of tools that a chat template writes between tags instead of as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class CallTags:
    """The texts between the name of a tool, the names of its arguments and their values.

    Such as ``<function=NAME>``, ``<parameter=ARGUMENT>``, VALUE, ``</parameter>``. A text value
    stands there as it is, any other one as JSON. Line breaks and spaces of these texts may be
    missing in what is read.
    """

    named: str
    """Between a tool's name and that of its first argument."""
    valued: str
    """Between an argument's name and its value."""
    between: str
    """Between a value and the next argument's name."""
    ended: str
    """After the last value."""
    bare: str
    """After the name of a tool that is called without arguments."""

    def read(self, text: str, tools: Iterable[Mapping[str, Any]]) -> str | None:
        """Return a call as JSON with ``name`` and ``arguments``; None if the text is none.

        Args:
            text: What stands between the opening and the closing of a call.
            tools: JSON schemas of the tools, which say what values are texts.
        """
        name, has_arguments, body = _cut(text, self.named)
        if not has_arguments:
            name, is_whole = _without_end(name, self.bare)
            given: dict[str, str] | None = {}
        else:
            body, is_whole = _without_end(body, self.ended)
            given = self._arguments(body)
        name = name.strip()
        if not is_whole or given is None or not name or len(name.split()) > 1:
            return None
        kinds = _kinds_of(name, tools)
        arguments = {key: _value(each, kinds.get(key, {})) for key, each in given.items()}
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)

    def _arguments(self, body: str) -> dict[str, str] | None:
        """Return the texts of values by the names of arguments; None if something else is there."""
        found = dict[str, str]()
        for part in re.split(_loose(self.between), body):
            key, has_value, value = _cut(part, self.valued)
            if not has_value or key.strip() in found:
                return None
            found[key.strip()] = value
        return found

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call as the template writes it, without opening and closing."""
        if not arguments:
            return f"{name}{self.bare}"
        pairs = (f"{key}{self.valued}{_text(value)}" for key, value in arguments.items())
        return f"{name}{self.named}{self.between.join(pairs)}{self.ended}"

    def marked(self, text: str) -> tuple[str, ...]:
        """Return the text alone: tags within calls are texts in the tokenizers that have them."""
        return (text,)


def tags_of(pieces: Sequence[Sequence[str] | None]) -> tuple[str, CallTags, str] | None:
    """Return the opening of a call, its tags and its closing; None if the template has none.

    Args:
        pieces: The texts around the names and values of a call with no, with one and with two
            arguments, in their order; None for one that the template does not write.
    """
    none, one, two = pieces
    if none is None or one is None or two is None:
        return None
    (opening, bare), (_, named, valued, ended), between = none, one, two[3]
    if [*one] != [opening, named, valued, ended]:
        return None
    if [*two] != [opening, named, valued, between, valued, ended]:
        return None
    closing = _common_end(bare, ended)
    if not all(each.strip() for each in (opening, named, valued, between, closing)):
        return None
    tags = CallTags(
        *(named, valued, between),
        ended=ended.removesuffix(closing),
        bare=bare.removesuffix(closing),
    )
    return opening.lstrip(), tags, closing.rstrip()


def _common_end(one: str, other: str) -> str:
    """Return the longest common end that begins with a space or a tag."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    end = one[len(one) - length :]
    begin = re.search(r"[\s<\[]", end)
    return end[begin.start() :] if begin else ""


def _loose(text: str) -> str:
    """Return a pattern of a text whose line breaks and spaces may be missing."""
    parts = re.split(r"(\s+)", text)
    return "".join(f"(?:{part})?" if part.isspace() else re.escape(part) for part in parts)


def _cut(text: str, mark: str) -> tuple[str, bool, str]:
    """Return what stands before and after the first mark, and whether there is one."""
    before, *after = re.split(_loose(mark), text, maxsplit=1)
    return before, bool(after), after[0] if after else ""


def _without_end(text: str, end: str) -> tuple[str, bool]:
    """Return a text without what it must end with, and whether it does."""
    match = re.search(rf"{_loose(end)}\s*\Z", text) if end.strip() else None
    if match is None:
        return text.removesuffix(end) if end else text, not end.strip()
    return text[: match.start()], True


def _kinds_of(name: str, tools: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments; none of one that does not exist."""
    functions = (tool.get("function", {}) for tool in tools)
    found: Mapping[str, Any] = next((each for each in functions if each.get("name") == name), {})
    properties = found.get("parameters", {}).get("properties", {})
    return properties if isinstance(properties, Mapping) else {}


def _value(text: str, kind: Any) -> Any:
    """Return the value that a text stands for; the text where it stands for none of its kind."""
    if _takes_text(kind):
        return text
    if text.strip() in _PYTHONS:
        return _PYTHONS[text.strip()]
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


_PYTHONS = {"True": True, "False": False, "None": None}
"""Values as Python spells them, which templates of Qwen's coders write."""


def _takes_text(kind: Any) -> bool:
    if not isinstance(kind, Mapping):
        return True
    options = [each for key in ("anyOf", "oneOf") for each in kind.get(key) or ()]
    if options:
        return any(map(_takes_text, options))
    named = kind.get("type", "string")
    return "string" in ([named] if isinstance(named, str) else named)


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
