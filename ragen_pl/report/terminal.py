"""Pictures on a terminal, in colored half blocks."""

from __future__ import annotations

import numpy as np
from PIL import Image
from rich.style import Style
from rich.text import Text

from ragen_pl.envs.picture import Picture

_UPPER_HALF = "▀"


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
