"""Frame messages with the tokens that mark them, and encode what the agent is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from transformers import PreTrainedTokenizerFast

Segments = tuple[int | str, ...]
"""A context: tokens, and texts between them, each encoded as one with the texts beside it."""


@dataclass(frozen=True, slots=True)
class ChatMarkers:
    """Say what stands around the messages of a dialogue."""

    system: Segments
    """Before the system message."""
    first_user: Segments
    """Between the system message and the first user message."""
    user: Segments
    """Between the end of an answer and the next user message."""
    assistant: Segments
    """Between a user message and the answer to it."""
    end: int
    """Closes an answer; the agent samples it to end its turn."""
    strips: bool = False
    """Whether messages lose the white space around them."""

    def first(self, system: str, user: str) -> Segments:
        """Frame the first context, up to where the agent answers."""
        messages = self._message(system), self._message(user)
        return (*self.system, messages[0], *self.first_user, messages[1], *self.assistant)

    def later(self, user: str) -> Segments:
        """Frame a later context, from behind the end of an answer to where the agent answers."""
        return (*self.user, self._message(user), *self.assistant)

    def _message(self, text: str) -> str:
        return text.strip() if self.strips else text


def encode_texts(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Encode plain texts; a special token spelled out in a text stays text."""
    if not texts:
        return []
    return tokenizer(  # type: ignore[no-any-return]
        list(texts), add_special_tokens=False, split_special_tokens=True
    )["input_ids"]


def encode_parts(
    tokenizer: PreTrainedTokenizerFast, contexts: Sequence[Segments]
) -> list[tuple[int, ...]]:
    """Encode contexts; equal texts only once."""
    joined = [tuple(_join_texts(context)) for context in contexts]
    texts = list(dict.fromkeys(p for parts in joined for p in parts if isinstance(p, str)))
    known = dict(zip(texts, encode_texts(tokenizer, texts), strict=True))
    return [
        tuple(i for p in parts for i in (known[p] if isinstance(p, str) else (p,)))
        for parts in joined
    ]


def _join_texts(context: Segments) -> Iterator[int | str]:
    for kind, parts in groupby(context, key=type):
        if kind is str:
            yield "".join(str(part) for part in parts)
        else:
            yield from parts
