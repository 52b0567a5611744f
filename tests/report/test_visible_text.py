"""Text of unknown origin hides nothing once it is made visible."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.report.visible_text import one_line, visible


@given(st.text(st.characters(), max_size=200))
def test_nothing_invisible_is_left(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")  # no lone surrogate
    kinds = {unicodedata.category(c) for c in shown if c not in "\n\t"}
    assert not kinds & {"Cc", "Cs", "Zl", "Zp"}
    assert not any(unicodedata.bidirectional(c) in BIDI for c in shown)


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"]), max_size=100))
def test_readable_text_stays(text: str) -> None:
    assert visible(text) == text


def test_names_say_what_was_there() -> None:
    assert visible("\x1b[31m") == "␛[31m"
    assert visible("a\x00b\x7fc\x9bd") == "a␀b␡c⟨U+009B⟩d"
    assert visible("a\u202eb\u2066c\ufeff\ud800") == "a⟨U+202E⟩b⟨U+2066⟩c⟨U+FEFF⟩⟨U+D800⟩"
    assert visible("one\r\ntwo\tthree") == "one\ntwo\tthree"


def test_one_line_is_short() -> None:
    assert one_line("  a\n\n b\t c ", 10) == "a b c"
    assert one_line("abcdefgh", 5) == "abcd…"
