"""The cube as text: the unfolded net, thoughts, and the pieces for a small tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ragen_pl.envs.rubik.cube import ACTIONS, COLORS, CORNER_COLORS, CORNER_NAMES, FACES, corners

_NAMES = ("white", "red", "green", "yellow", "orange", "blue")
_INDENT = "  "
LEGEND = ", ".join(f"{color} {name}" for color, name in zip(COLORS, _NAMES, strict=True))


def net_rows(cube: str) -> list[str]:
    """Return the rows of the net: U, then L, F, R and B beside each other, then D."""
    face = {name: cube[4 * i : 4 * i + 4] for i, name in enumerate(FACES)}
    halves = (slice(0, 2), slice(2, 4))
    middle = ["".join(face[name][half] for name in "LFRB") for half in halves]
    upper, lower = ([_INDENT + face[name][half] for half in halves] for name in "UD")
    return [*upper, *middle, *lower]


def facts(cube: str) -> tuple[str, ...]:
    """Return the colors of each corner, such as ``URF:WRG``, the first words of a true thought."""
    return tuple(f"{name}:{at}" for name, at in zip(CORNER_NAMES, corners(cube), strict=True))


def read_plan(thought: str, expected_facts: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the plan of a thought that begins with the expected facts; None for any other text."""
    words = tuple(thought.split(" "))
    plan = words[len(expected_facts) :]
    if words[: len(expected_facts)] != expected_facts:
        return None
    return plan if set(plan) <= set(ACTIONS) else None


def net_pieces() -> Iterator[str]:
    """List the pieces of which all nets consist: half rows of a face."""
    for one, other in product(COLORS, repeat=2):
        half = one + other
        yield from (half, f"{half}\n", f"{_INDENT}{half}\n", f"{_INDENT}{half}")


def thought_pieces(*, with_facts: bool) -> Iterator[str]:
    """List the words of a thought, each with the space before it, and the first words without."""
    if with_facts:
        for name, colors in product(CORNER_NAMES, CORNER_COLORS):
            yield f"{'' if name == CORNER_NAMES[0] else ' '}{name}:{colors}"
    for action in ACTIONS:
        yield from (action, f" {action}")
