"""The grading of thoughts: words compared with true ones, and the progress of a plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class StatementScore(NamedTuple):
    """How many of some statements hold; partly true statements count in part."""

    true: float
    stated: int

    def __add__(self, other: object) -> StatementScore:
        """Join two sets of statements."""
        assert isinstance(other, StatementScore)
        return StatementScore(self.true + other.true, self.stated + other.stated)

    @property
    def share(self) -> float:
        """Share of the statements that hold, in [0, 1]; exactly 1 only if all of them do."""
        return self.true / self.stated


def split_before(words: Sequence[str], marks: Collection[str]) -> tuple[Sequence[str], ...]:
    """Split words before the first one that is among ``marks``."""
    place = next((i for i, word in enumerate(words) if word in marks), len(words))
    return words[:place], words[place:]


def compare(stated: Sequence[str], expected: Sequence[str]) -> StatementScore:
    """Compare words place by place; missing and surplus words count as statements that do not
    hold."""
    matching = sum(one == other for one, other in zip(stated, expected, strict=False))
    return StatementScore(matching, max(len(stated), len(expected)))


def progress(before: int, after: int) -> float:
    """Return the share of a way that is behind, in [0, 1].

    Args:
        before: Distance from the goal at the start, above 0.
        after: Distance from the goal now.
    """
    return max(0.0, 1.0 - after / before)
