"""Eruptions of entropy, which rises in bursts and falls back, again and again (arXiv 2605.27954).

A comparison with the lowest entropy so far sees the first burst only in part, and nothing of later
ones that begin from a higher level. Here every burst is compared with the trough before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MIN_RISE = 0.05
"""Smallest rise above the trough, in nats, that begins a burst."""
BEGINS = 1.5
"""Multiple of the trough above which a burst begins."""
ENDS = 0.5
"""Share of a burst's rise, from its trough to its crest, below which it has ended."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """The bursts of a series up to its last value."""

    count: int
    """Bursts that have begun, the present one included."""
    height: float
    """The last value over the trough before it; 1 at the trough."""
    is_present: bool
    """Whether a burst has begun and not ended."""


def find_bursts(entropies: Iterable[float]) -> Bursts:
    """Find the bursts of a smoothed series of entropies.

    A burst begins above ``BEGINS`` times the trough, by at least ``MIN_RISE``, and ends when less
    than half of its rise is left; the trough of the next one is then looked for from there on.

    Args:
        entropies: Mean entropy per token of each iteration, in nats, smoothed.
    """
    count, trough, crest, value, is_present = 0, math.inf, 0.0, math.inf, False
    for value in entropies:
        if is_present:
            crest = max(crest, value)
            if value < trough + ENDS * (crest - trough):
                is_present, trough = False, value
            continue
        trough = min(trough, value)
        if value > BEGINS * trough and value - trough > MIN_RISE:
            count, crest, is_present = count + 1, value, True
    has_trough = 1e-6 < trough < math.inf  # else there is no value, or entropy is gone
    return Bursts(count, value / trough if has_trough else 1.0, is_present)
