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
