"""The sentences of Coq: those of a file, and whether a text is one tactic and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ragen_pl.envs.proof.tactic_text import refuse_unfit

_PIECE = re.compile(r'"(?:[^"]|"")*"|\(\*|\*\)')
_END = re.compile(r'"(?:[^"]|"")*"|\.(?=\s|$)')
_BULLET = re.compile(r"\s*(-+|\++|\*+|[{}])\s*")
_SELECTOR = re.compile(r"(all|par|!|\d+(?:\s*-\s*\d+)?(?:\s*,\s*\d+(?:\s*-\s*\d+)?)*)\s*:(?!=)\s*")
_REFUSED = re.compile(
    r"\b(native_compute|native_cast_no_check|admit|give_up|time|time_constr|restart_timer|"
    r"finish_timing|optimize_heap|ltac2|rewrite_db|show)\b"
)


def without_comments(text: str) -> str:
    """Return a file's text without its comments, which nest; those in strings stay."""
    kept, depth, start = [], 0, 0
    for piece in _PIECE.finditer(text):
        if piece[0] == "(*":
            if depth == 0:
                kept.append(text[start : piece.start()])
            depth += 1
        elif piece[0] == "*)" and depth:
            depth -= 1
            start = piece.end()
    return " ".join((*kept, text[start:] if depth == 0 else ""))


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a file, each on one line, without bullets and braces apart.

    A bullet or brace is a sentence of Coq by itself; here it begins the tactic after it.
    """
    text, start = without_comments(text), 0
    for end in _END.finditer(text):
        if end[0] == ".":
            yield " ".join(text[start : end.end()].split())
            start = end.end()


def split_bullets(sentence: str) -> tuple[list[str], str]:
    """Split off the bullets and braces before a sentence; each is a sentence by itself."""
    found = []
    while mark := _BULLET.match(sentence):
        found.append(mark[1])
        sentence = sentence[mark.end() :]
    return found, sentence.strip()


def commands(tactic: str, seconds: int) -> list[str]:
    """Return the sentences to send for a tactic: its bullets and braces, and the tactic itself.

    The tactic stands in brackets, where Coq reads nothing but a tactic, and every text that could
    end the sentence early is refused: no command passes.

    Args:
        tactic: The text, with or without its last period.
        seconds: Time limit of the tactic.

    Raises:
        ValueError: if the text is no single tactic, or one that is not allowed; the message says
            why.
    """
    text = " ".join(tactic.split())
    refuse_unfit(text, _REFUSED)
    found, text = split_bullets(text)
    text = text[:-1].rstrip() if text.endswith(".") else text
    closing = []
    while text.endswith("}") and text.count("}") > text.count("{"):
        closing.append("}")
        text = text[:-1].rstrip()
        text = text[:-1].rstrip() if text.endswith(".") else text
    if re.search(r"\.(?=\s|$)", text):
        raise ValueError("one tactic at a time")
    if '"' in text or "(*" in text or "*)" in text:
        raise ValueError("a tactic has no strings and no comments")
    selector = _SELECTOR.match(text)
    where = "" if selector is None else f"{selector[1]}: "
    body = text if selector is None else text[selector.end() :]
    if body:
        found.append(f"Timeout {seconds} {where}({body}).")
    elif selector is not None or not (found or closing):
        raise ValueError("there is no tactic")
    return [*found, *closing]
