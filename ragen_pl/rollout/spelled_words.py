"""Words that a policy reads and writes letter by letter, for want of a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast

_MUCH = 0.25
"""Share of the tokens from which on it is told."""
_SHORTEST = 3
"""Letters of a word; fewer may be symbols of a board."""
_SHOWN = 4


def told_of_spelled_words(
    rows: Iterable[tuple[int, ...]], tokenizer: PreTrainedTokenizerFast
) -> str:
    """Say which words of some token sequences are spelled in tokens of one letter each, as the
    embedded model has them for what no environment lists; empty if these are few."""
    words, tokens = Counter[str](), 0
    for row in rows:
        texts = (str(tokenizer.decode([token])) for token in row)
        letters = "".join(each if len(each) == 1 and each.isalpha() else " " for each in texts)
        words.update(word for word in letters.split() if len(word) >= _SHORTEST)
        tokens += len(row)
    share = sum(len(word) * count for word, count in words.items()) / max(1, tokens)
    if share < _MUCH:
        return ""
    common = sorted(words, key=lambda word: -len(word) * words[word])[:_SHOWN]
    return (
        f"{share:.0%} of the tokens are letters of words that have no token, such as "
        f"{', '.join(common)}: list such words, or whole lines, in the environment's vocabulary()"
    )
