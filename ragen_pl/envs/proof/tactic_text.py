"""What every prover asks of the text of a tactic before it is sent."""

from __future__ import annotations

import re

LONGEST_TACTIC = 1000
"""Characters of a tactic."""


def refuse_unfit(text: str, refused: re.Pattern[str]) -> None:
    """Refuse a text that is too long, holds control characters, or a word that is refused.

    Args:
        text: A tactic; its lines end with a newline.
        refused: The words, in a pattern whose first group is the word.

    Raises:
        ValueError: if it is unfit; the message, for the agent, says why.
    """
    if len(text) > LONGEST_TACTIC:
        raise ValueError(f"a tactic has at most {LONGEST_TACTIC} characters")
    if not text.replace("\n", "").isprintable():
        raise ValueError("a tactic has no control characters")
    if found := refused.search(text):
        raise ValueError(f"{found[1]} is not allowed")
