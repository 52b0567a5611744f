"""Text of environments, models and users that a terminal shows, but does not obey."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable

_KEPT = "\n\t"
_BREAKS = {ord(character): None for character in _KEPT}
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the direction of writing or show nothing."""
_PICTURES = {**{code: chr(0x2400 + code) for code in range(0x20)}, 0x7F: "␡"}
"""Unicode's pictures of the ASCII control characters."""
_LONGEST = 20_000


def shown(value: object, show: Callable[[object], str] = repr) -> str:
    """Return a value as text, even if it cannot be shown."""
    try:
        return show(value)
    except Exception as error:  # user code as well
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def visible(text: str, longest: int = _LONGEST) -> str:
    """Return a text that a terminal shows as it is: control characters become visible signs.

    Escape sequences, carriage returns, changes of direction, lone surrogates and invisible
    characters are replaced; line breaks and tabs are kept. Text beyond ``longest`` characters is
    counted, not shown.
    """
    shown = text[:longest].replace("\r\n", "\n")
    if not shown.translate(_BREAKS).isprintable():  # the rest is slow
        shown = "".join(map(_sign, shown))
    rest = len(text) - longest
    return f"{shown} … ({rest} more characters)" if rest > 0 else shown


def _sign(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _INVISIBLE:
        return character
    return _PICTURES.get(ord(character), f"⟨U+{ord(character):04X}⟩")


def one_line(text: str, longest: int = 400) -> str:
    """Return a text on one line, with control characters made visible."""
    return visible(re.sub(r"\s+", " ", text).strip(), longest)


class VisibleFormatter(logging.Formatter):
    """A formatter of log lines, such as warnings that quote an environment's error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line with its control characters made visible."""
        return visible(super().format(record))


def log_visibly() -> None:
    """Make control characters visible in log lines that no handler of the user's takes."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(VisibleFormatter())
