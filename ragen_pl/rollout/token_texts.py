"""The text of each sampled token, whatever a tokenizer does at the borders of words."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_pl.rollout.chat import Chat
from ragen_pl.types import Completion

_LONGEST_SPAN = 64
"""Maximum tokens that are decoded together to find their text."""


def token_texts(completion: Completion, response: str, chat: Chat) -> list[str]:
    """Return the text of each sampled token; concatenated, they are the response.

    Where several tokens make one character, such as its bytes, the last of them has it and the
    others are empty, and so is the token that ends the message. If a tokenizer does not decode from
    left to right, the text from there on is the last token's.
    """
    ids = completion.token_ids
    alone = [chat.token_text(token) for token in ids]
    if "".join(alone) == response:
        return alone
    texts, start, at = [""] * len(ids), 0, 0
    while start < len(ids):
        for end in range(start + 1, min(start + _LONGEST_SPAN, len(ids)) + 1):
            text = _span_text(ids, start, end, chat, response[at:])
            if text is not None:
                texts[end - 1], start, at = text, end, at + len(text)
                break
        else:
            break
    if texts:
        texts[-1] += response[at:]
    return texts


def _span_text(ids: Sequence[int], start: int, end: int, chat: Chat, wanted: str) -> str | None:
    """Return the text of some tokens, with which ``wanted`` begins; None if it does not."""
    text = chat.decode(ids[start:end])
    if not wanted.startswith(text) and start:  # a space may hang on the token before
        before = chat.decode(ids[start - 1 : start])
        text = chat.decode(ids[start - 1 : end])[len(before) :]
    return text if wanted.startswith(text) else None
