"""The page of all keys is what the signatures give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ragen_pl.cli import reference


def test_the_page_is_up_to_date() -> None:
    written = reference.PAGE.read_text(encoding="utf-8")
    assert written == reference.render(), f"write it again: {reference._COMMAND}"


@pytest.mark.parametrize("line", [["--help"], ["-x"]])
def test_an_option_is_no_file(
    line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        reference.main(line)
    assert not list(tmp_path.iterdir())


def test_every_key_says_what_it_does() -> None:
    rows = [line for line in reference.render().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    assert not [row for row in rows if row.endswith("|  |")]


@dataclass(frozen=True)
class Bounded:
    """Refuses numbers out of range.

    Args:
        share: E.g. a half, cf. eq. 3 of it. More is told elsewhere.
    """

    share: float = 0.5
    count: int = 2
    above: float | None = None
    needed: int = 1
    free: float = 0.0
    name: str = ""
    people: int = 400
    even: int = 192
    size: int = 4
    odd: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError
        if not 2 <= self.count <= 32:
            raise ValueError
        if not -0.3 < self.odd <= 4.5:
            raise ValueError
        if self.above is not None and self.above <= 1:
            raise ValueError
        if self.needed < 1:
            raise ValueError
        if not 20 <= self.people <= 900 or self.even % 2 or self.size not in (4, 9):
            raise ValueError


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("share", "(0, 1]"),
        ("count", "[2, 32]"),
        ("above", "> 1"),
        ("odd", "(-0.3, 4.5]"),
        ("needed", "≥ 1"),
        ("free", ""),
        ("name", ""),
        ("people", "[20, 900]"),
        ("even", ""),  # no interval
        ("size", ""),
    ],
)
def test_a_range_is_what_the_constructor_takes(name: str, bounds: str) -> None:
    keys = reference._keys(Bounded)
    (key,) = [key for key in keys if key.name == name]
    assert reference._range(Bounded, key, keys) == bounds


def test_a_description_is_cut_after_its_first_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "_OURS", (__name__.partition(".")[0],))
    assert reference._first_sentence(reference._keys(Bounded)[0].description) == (
        "E.g. a half, cf. eq. 3 of it"
    )
