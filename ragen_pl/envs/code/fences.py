"""The program in a text that may have it between fences of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"([ \t]*|[^`]*(?=`))(`{3,}|~{3,})[ \t]*([\w+#.-]*)[ \t]*")
"""A line that ends in a fence and, optionally, a language; before backticks there may be words."""


def program_in(text: str) -> str:
    """Return the last block of a text between fences of Markdown; all of it if there are none.

    A block that is not closed goes to the end. Fences within a line, or further from the margin
    than the one that opened the block, are the program's own. What is indented as a whole is moved
    to the margin.
    """
    text = text.replace("\r\n", "\n")
    blocks = [block for block in _blocks(text) if block.strip()]
    lines = (blocks[-1] if blocks else text).split("\n")
    # Unlike textwrap.dedent, this leaves lines of blanks as they are, which may be in a string.
    margin = min((_margin(line) for line in lines if line.strip()), key=len, default="")
    return "\n".join(line.removeprefix(margin) for line in lines).strip()


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _ends(found: re.Match[str], fence: str, margin: int) -> bool:
    """Return whether a line that is a fence ends the block that another fence opened."""
    is_alone = not found[1].strip()
    return is_alone and found[2].startswith(fence) and len(found[1]) <= margin


def _blocks(text: str) -> Iterator[str]:
    fence, margin, block = "", 0, list[str]()
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line)
        if found and (not fence or _ends(found, fence, margin)):
            if fence:
                yield "\n".join(block)
            # A language begins a block, even where the one before it was not closed.
            fence = found[2] if found[3] or not fence else ""
            margin, block = len(_margin(line)), []
        elif fence:
            block.append(line)
    if fence:  # not closed on a line of its own, but perhaps at the end of one
        yield re.split(rf"{fence}[ \t]*$", "\n".join(block), maxsplit=1, flags=re.MULTILINE)[0]
