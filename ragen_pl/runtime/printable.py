"""Text of unknown origin, made safe for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with everything but line breaks and printable characters escaped.

    A terminal executes control characters: they move the cursor, set its title, or write to the
    clipboard. Invisible ones, such as those that reverse the direction of writing, are escaped,
    too.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(
        character if character == "\n" or character.isprintable() else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
