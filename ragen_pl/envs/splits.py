"""Splits of initial states that no evaluation shares with training, for any kind of state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal

Split = Literal["train", "eval", "all"]
"""Initial states to train on, to evaluate on, and every one."""
_BUCKETS = 5
"""One initial state in five is for evaluation."""
_MOST_TRIES = 1000


def split_of(key: str) -> Split:
    """Return the split of an initial state by a key of it, the same in every process."""
    digest = hashlib.sha256(f"split {key}".encode()).digest()
    return "eval" if digest[0] % _BUCKETS == 0 else "train"


def enter_split(seed: int, split: Split, begin: Callable[[int], str]) -> None:
    """Begin episodes until the initial state belongs to the split.

    Args:
        seed: The seed of the reset, which decides every try.
        split: The wanted split.
        begin: Begins an episode from a seed and returns a key of its initial state.

    Raises:
        ValueError: if no initial state of the split is found.
    """
    for attempt in range(_MOST_TRIES):
        key = begin(_seed_of(seed, attempt))
        if split in ("all", split_of(key)):
            return
    raise ValueError(
        f"split: none of {_MOST_TRIES} initial states belongs to split {split!r}: the task has too "
        "few of them to hold some out; use split: all, and read its evaluation as what was "
        "learned, not as generalization"
    )


def _seed_of(seed: int, attempt: int) -> int:
    """Return the seed of a try, below 2^32: some packages accept no larger ones.

    The first is the reset's own where that is small enough. The others are below 2^31, and thus
    not among the seeds of evaluation sets.
    """
    if attempt == 0 and seed < 1 << 32:
        return seed
    digest = hashlib.sha256(f"start {seed} {attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
