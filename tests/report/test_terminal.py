"""Pictures fit the terminal and keep their colors."""

from __future__ import annotations

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ragen_pl.report.terminal import picture_text


def test_a_picture_is_drawn_in_half_blocks() -> None:
    picture = np.zeros((4, 4, 3), np.uint8)
    picture[:2] = 255
    text = picture_text(picture, 4)
    assert text.plain == "▀▀▀▀\n▀▀▀▀"
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="truecolor", width=20).print(text)
    first, second = file.getvalue().splitlines()
    assert "38;2;255;255;255;48;2;255;255;255" in first
    assert "38;2;0;0;0;48;2;0;0;0" in second


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 60))
def test_a_picture_of_any_size_fits(height: int, width: int, columns: int) -> None:
    text = picture_text(np.zeros((height, width, 3), np.uint8), columns)
    assert all(0 < len(line) <= columns for line in text.plain.splitlines())
