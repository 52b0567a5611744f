"""Whatever an environment or a model writes, a terminal shows it and obeys nothing of it."""

from __future__ import annotations

import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.runtime.visible_text import VisibleFormatter, one_line, visible

HARMLESS = "\n\t"
EVERYTHING = st.text(st.characters(exclude_categories=()), max_size=200)


@given(EVERYTHING)
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    shown = visible(text)
    for character in shown:
        category = unicodedata.category(character)
        assert character in HARMLESS or category not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    shown.encode()  # no lone surrogates


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=80))
def test_ordinary_text_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "␛[31mred␛]0;title␇"),
        ("a\rb\r\nc", "a␍b\nc"),
        ("\x9b2J\x7f", "⟨U+009B⟩2J␡"),
        ("abc\u202etxt", "abc⟨U+202E⟩txt"),
        ("\ud800", "⟨U+D800⟩"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_control_characters_become_signs(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_a_megabyte_is_counted_not_shown() -> None:
    shown = visible("x" * 1_000_000)
    assert len(shown) < 21_000
    assert shown.endswith("(980000 more characters)")
    assert one_line("a\n b\tc") == "a b c"


def test_log_lines_are_visible_too() -> None:
    record = logging.LogRecord("env", logging.WARNING, "x.py", 1, "%s failed", ("\x1b[2J",), None)
    assert VisibleFormatter().format(record) == "␛[2J failed"
