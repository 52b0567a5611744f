"""Scores of short answers, as in SQuAD and HotpotQA."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = ("a", "an", "the")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation, articles and further spaces.

    One of articles alone, such as the choice A, keeps them.
    """
    words = answer.lower().translate(_PUNCTUATION).split()
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Return whether an answer is one of the right ones, but for form."""
    return normalized(answer) in {normalized(gold) for gold in golds}


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
