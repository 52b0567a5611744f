"""Scores of short answers, as in SQuAD and HotpotQA, with numbers compared by value."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from ragen_pl.envs.math_qa.answers import are_equal_numbers

_ARTICLES = ("a", "an", "the")
_PUNCTUATION = re.escape(string.punctuation)
_MINUS = re.compile(r"[−–](?=\.?\d)")
"""Minus signs and dashes before a number, for which people type hyphens."""
_KEPT = (
    r"(?<!\w)[-+](?=\$?\.?\d)"  # the sign of a number
    r"|(?<!\w)\.(?=\d)|(?<=\d)[-+./:](?=\d)"  # within a number, a date, a time, a range
    r"|(?<=\d),(?=\d)(?!\d{3}(?!\d))"  # a comma that groups no thousands
    r"|(?<=[^\W\d_])(?:\+\+|#(?!\w))|(?<=\w)\+(?!\w)"  # C++, C#, A+
    r"|(?<=\b[a-z])-(?!\w)|(?<=\b[ab]b)-(?!\w)"  # A-, AB-
)
_DROPPED = re.compile(rf"({_KEPT})|[{_PUNCTUATION}]")
_NUMBER = re.compile(r"([-+]?)([0-9]*)(?:\.([0-9]+))?")


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and further spaces.

    What SQuAD's normalization would drop is kept where it decides the meaning: the signs and the
    points of numbers, and symbols such as those of C++, C# and A+. Equal numbers are written the
    same way. An answer of punctuation or articles alone, such as the choice A, keeps them.
    """
    text = _MINUS.sub("-", answer.lower())
    words = [_plain(word) for word in _DROPPED.sub(lambda found: found[1] or "", text).split()]
    return " ".join([word for word in words if word not in _ARTICLES] or words or text.split())


def _plain(word: str) -> str:
    """Return the shortest way to write a number, such as 2 for +2.0; any other word as it is."""
    found = _NUMBER.fullmatch(word)
    if found is None or not any(char.isdigit() for char in word):
        return word
    whole, part = found[2].lstrip("0") or "0", (found[3] or "").rstrip("0")
    value = f"{whole}.{part}" if part else whole
    return f"-{value}" if found[1] == "-" and value != "0" else value


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Return whether an answer is one of the right ones, but for form; numbers have to be equal."""
    return any(_are_equal(answer, gold) for gold in golds)


def _are_equal(answer: str, gold: str) -> bool:
    equal = are_equal_numbers(answer, gold)
    return normalized(answer) == normalized(gold) if equal is None else equal


def f1_score(answer: str, golds: Iterable[str]) -> float:
    """Return the best harmonic mean of precision and recall of words over the right answers.

    ``yes``, ``no`` and ``noanswer`` are right as a whole or not at all.
    """
    return max((_f1(normalized(answer), normalized(gold)) for gold in golds), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and {answer, gold} & {"yes", "no", "noanswer"}:
        return 0.0
    words, wanted = answer.split(), gold.split()
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))
