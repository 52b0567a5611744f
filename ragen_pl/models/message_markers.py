"""Chat markers, which are the tokens around messages, and the encoding of contexts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from transformers import PreTrainedTokenizerFast

from ragen_pl.models.call_syntax import CallSyntax

Segments = tuple[int | str, ...]
"""A context: token ids, and texts between them; adjacent texts are encoded as one."""


@dataclass(frozen=True, slots=True)
class ChatMarkers:
    """The token ids and texts around the messages of a conversation."""

    system: Segments
    """Tokens and text before the system message."""
    first_user: Segments
    """Tokens and text between the system message and the first user message."""
    user: Segments
    """Tokens and text between the end of a response and the next user message."""
    assistant: Segments
    """Tokens and text between a user message and the response to it."""
    end: int
    """The token that ends a response; the agent samples it to end its turn."""
    strips: bool = False
    """Whether leading and trailing white space of messages is removed."""
    indents: bool = False
    """Whether the blanks before a message's first line stay all the same."""
    as_json: bool = False
    """Whether later messages are written as a text in JSON, whose quotes are among the markers."""
    tool_template: ToolTemplate | None = field(default=None, compare=False)
    """The form of tools in the model's chat template; None if there is no template."""

    def first(self, system: str, user: str) -> Segments:
        """Return the first context, up to the beginning of the response."""
        messages = self._message(system), self._message(user)
        return (*self.system, messages[0], *self.first_user, messages[1], *self.assistant)

    def later(self, user: str) -> Segments:
        """Return a later context, from the end of a response to the beginning of the next."""
        text = self._message(user)
        if self.as_json:
            text = json.dumps(text, ensure_ascii=False)[1:-1]
        return (*self.user, text, *self.assistant)

    def _message(self, text: str) -> str:
        if not self.strips:
            return text
        return text.rstrip().lstrip("\n") if self.indents else text.strip()


@dataclass(frozen=True, slots=True)
class ToolMarkers:
    """The markers of conversations in which tools are known and called."""

    message: ChatMarkers
    """The markers around messages, the tools among those before the first."""
    result: ChatMarkers
    """The same with ``user`` and ``assistant`` around the result of a call in place of a user
    message, if the template knows results."""
    opening: str
    """Text before a call; may be empty before one in JSON."""
    closing: str
    """Text after it; may be empty after one in JSON."""
    syntax: CallSyntax | None = None
    """What stands within a call; None for a JSON object with a name and arguments."""


class ToolTemplate(Protocol):
    """A chat template, asked for its form of tools."""

    def tool_markers(self, tools: Sequence[Mapping[str, Any]]) -> ToolMarkers:
        """Return the markers of conversations with these tools.

        Raises:
            ValueError: if the template has no tools, or calls in a form that cannot be read.
        """
        ...


def split_at(text: str, tokens: Mapping[str, int]) -> Segments:
    """Split a text at the tokens that it spells."""
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = "|".join(re.escape(token) for token in longest_first)
    pieces = re.split(f"({pattern})", text) if tokens else [text]
    return tuple(tokens.get(piece, piece) for piece in pieces if piece)


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Encode plain texts; a special token spelled out in a text is encoded as text.

    The tokenizer's core is called as the tokenizer itself calls it, which takes half of the time:
    an iteration encodes thousands of short texts.
    """
    core = tokenizer.backend_tokenizer  # changed only where it must be: threads share it
    if not core.encode_special_tokens:
        core.encode_special_tokens = True
    if core.padding is not None:
        core.no_padding()
    if core.truncation is not None:
        core.no_truncation()
    encoded = core.encode_batch_fast(list(texts), add_special_tokens=False)
    return [each.ids for each in encoded]


def encode_segments(
    tokenizer: PreTrainedTokenizerFast, contexts: Sequence[Segments]
) -> list[tuple[int, ...]]:
    """Encode contexts to token ids; a text that occurs several times is encoded once."""
    joined = [tuple(_join_texts(context)) for context in contexts]
    texts = list(dict.fromkeys(p for segments in joined for p in segments if isinstance(p, str)))
    known = dict(zip(texts, encode_texts(tokenizer, texts), strict=True))
    return [
        tuple(i for p in segments for i in (known[p] if isinstance(p, str) else (p,)))
        for segments in joined
    ]


def _join_texts(context: Segments) -> Iterator[int | str]:
    for kind, parts in groupby(context, key=type):
        if kind is str:
            yield "".join(str(part) for part in parts)
        else:
            yield from parts
