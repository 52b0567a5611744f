"""Text and pictures for a terminal, on which text of environments and models has no effect."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
from PIL import Image
from rich.style import Style
from rich.text import Text

from ragen_pl.envs.base import Picture

_KEPT = "\n\t"
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the direction of writing or show nothing."""
_PICTURES = {**{code: chr(0x2400 + code) for code in range(0x20)}, 0x7F: "␡"}
"""Unicode's pictures of the ASCII control characters."""
_LONGEST = 20_000
_UPPER_HALF = "▀"


def visible(text: str, longest: int = _LONGEST) -> str:
    """Return a text that a terminal shows as it is: control characters become visible signs.

    Escape sequences, carriage returns, changes of direction, lone surrogates and invisible
    characters are replaced; line breaks and tabs are kept. Text beyond ``longest`` characters is
    counted, not shown.
    """
    shown = "".join(map(_sign, text[:longest].replace("\r\n", "\n")))
    rest = len(text) - longest
    return f"{shown} … ({rest} more characters)" if rest > 0 else shown


def _sign(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _INVISIBLE:
        return character
    return _PICTURES.get(ord(character), f"⟨U+{ord(character):04X}⟩")


def one_line(text: str, longest: int = 400) -> str:
    """Return a text on one line, with control characters made visible."""
    return visible(re.sub(r"\s+", " ", text).strip(), longest)


def picture_text(picture: Picture, columns: int) -> Text:
    """Draw a picture with two pixels a character, the upper one as its color and the lower one as
    its background.

    Args:
        picture: The RGB array.
        columns: Largest width in characters.
    """
    height, width = picture.shape[:2]
    wide = max(1, min(columns, width))
    high = max(2, 2 * round(height * wide / width / 2))
    small = np.asarray(Image.fromarray(picture).resize((wide, high), Image.Resampling.BOX))
    text = Text(no_wrap=True)
    for above, below in zip(small[::2], small[1::2], strict=True):
        for upper, lower in zip(above, below, strict=True):
            text.append(_UPPER_HALF, Style(color=_hex(upper), bgcolor=_hex(lower)))
        text.append("\n")
    text.right_crop(1)
    return text


def _hex(color: np.ndarray) -> str:
    red, green, blue = (int(value) for value in color)
    return f"#{red:02x}{green:02x}{blue:02x}"
