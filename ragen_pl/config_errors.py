"""Word configuration errors in one to three lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_NOISE = (
    r"^error: ",
    r"^Parser key \"[^\"]*\": ?",
    r"^Problem with given class_path '[^']*': ?",
    r"^Validation failed: ?",
    r"^- ",
)
_LINES, _WIDTH = 3, 240


def shorten(message: str) -> str:
    """Reduce the parser's report to the key, the value and the most telling reason."""
    key = _deepest_key(message)
    lines = [_clean(line) for line in message.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("For details", "Usage:"))]
    telling = [line for line in lines if "Expected a <class 'NoneType'>" not in line] or lines
    text = telling[-1] if len(telling) > _LINES else "\n  ".join(telling)
    if key and key not in text:
        text = f"{key}: {text}"
    return text if len(text) <= _LINES * _WIDTH else text[: _LINES * _WIDTH] + " …"


def _clean(line: str) -> str:
    text = line.strip()
    for _ in range(len(_NOISE)):
        for pattern in _NOISE:
            text = re.sub(pattern, "", text).strip()
    return text


def _deepest_key(message: str) -> str:
    keys = re.findall(r"(?:Parser key|Key|key) [\"']([\w.\[\]-]+)[\"']", message)
    return max(keys, key=lambda key: key.count("."), default="")


def qualify(message: str, keys: Iterable[str]) -> str:
    """Complete the key that a constructor's error begins with to the one a user sets.

    A constructor knows its own argument (``keep_fraction is 3``) but not under which name the
    configuration holds it (``filter.keep_fraction``).
    """
    match = re.match(r"([\w.]+)(?= is |: )", message)
    if match is None:
        return message
    whole = [key for key in keys if key == match[1] or key.endswith(f".{match[1]}")]
    whole = [key for key in whole if ".init_args." not in key or len(whole) == 1] or whole
    return message if len(whole) != 1 else whole[0] + message[match.end() :]


def nearest(word: str, known: Iterable[str]) -> str:
    """Offer the names closest to a word as a clause; empty when none is close."""
    found = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""
