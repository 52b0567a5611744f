"""Text of unknown origin, made safe to show: what is invisible becomes visible."""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Replace control characters, marks of writing direction, other invisible characters and lone
    surrogates by names, so that a text can neither hide nor reorder anything.

    Newlines and tabs stay. C0 controls become their pictures (escape is ``␛``), the others their
    code points (``⟨U+202E⟩``).
    """
    return _HIDDEN.sub(_name, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int) -> str:
    """Return a visible text on one line, cut to a number of characters."""
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _name(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"⟨U+{code:04X}⟩"
