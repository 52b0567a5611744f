"""Exact match and F1, by hand."""

from __future__ import annotations

import pytest

from ragen_pl.envs.tools.questions import reward_of
from ragen_pl.envs.tools.scoring import exact_match, f1_score, normalized


def test_form_does_not_count() -> None:
    assert normalized("  The U.S.  Army,\n") == "us army"
    assert exact_match("an Apple!", ["pear", "apple"])
    assert exact_match("(A)", ["a"])
    assert not exact_match("the", ["a"])
    assert not exact_match("apples", ["apple"])


@pytest.mark.parametrize(
    ("answer", "gold", "is_right"),
    [
        ("-3", "3", False),
        ("−3", "-3", True),
        ("$-3", "-$3", True),
        ("- 3", "3", False),
        ("1.5", "15", False),
        ("2.0", "2", True),
        (".50", "0.5", True),
        ("1,000", "1000", True),
        ("1,5", "15", False),
        ("1/2", "0.5", True),
        ("9/11", "911", False),
        ("the 3.", "3", True),
        ("10:30", "1030", False),
        ("1990–1995", "1990-1995", True),
        ("3-4", "34", False),
        ("3.10", "3.1", True),
        ("3.1.0", "3.1", False),
        ("C++", "C", False),
        ("(C++).", "c++", True),
        ("C#", "C", False),
        ("C#", "C++", False),
        ("A+", "A-", False),
        ("AB-", "AB", False),
        ("+", "-", False),
        ("Covid-19", "COVID 19", False),
        ("Covid-19", "COVID19", True),
        ("well-known", "wellknown", True),
        ("-5 degrees", "5 degrees", False),
        ("5.0 degrees", "5 degrees", True),
    ],
)
def test_signs_points_and_symbols_count(answer: str, gold: str, is_right: bool) -> None:
    assert exact_match(answer, [gold]) is is_right
    assert exact_match(gold, [answer]) is is_right


def test_signs_count_in_the_f1_too() -> None:
    assert f1_score("minus -3 degrees", ["3 degrees"]) == pytest.approx(2 / 5)
    assert f1_score("C++", ["C"]) == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "score"),
    [
        ("Port Alder", "Port Alder", 1.0),
        ("Port", "Port Alder", 2 / 3),
        ("in the town of Port Alder", "Port Alder", 4 / 7),
        ("Alder Alder", "Port Alder", 0.5),
        ("Oslo", "Port Alder", 0.0),
        ("", "Port Alder", 0.0),
        ("yes it is", "yes", 0.0),
        ("yes", "yes", 1.0),
    ],
)
def test_f1(answer: str, gold: str, score: float) -> None:
    assert f1_score(answer, [gold, "something else entirely"]) == pytest.approx(score)


def test_the_reward_is_the_f1_from_a_threshold_on() -> None:
    golds = ["a b c d e f g h i"]
    assert f1_score("b", golds) == pytest.approx(2 / 9)
    assert reward_of("b", golds, "f1") == 0.0
    assert reward_of("b c", golds, "f1") == pytest.approx(0.4)
    assert reward_of("b c", golds, "exact") == 0.0
    assert reward_of(golds[0].upper(), golds, "exact") == 1.0
