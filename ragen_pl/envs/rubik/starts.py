"""Random scrambles of the 2×2×2 cube, and the split that a start belongs to.

The split follows from a hash of the start's canonical form, so that no start of one split is the
start of another one, however it is held, colored or mirrored. The cubes within three turns of the
solved one are an exception: they are 153 in ten forms, one of them at one turn, and every
split has them all. All cubes are connected, so training may pass cubes on its way that are
starts of an evaluation set.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from typing import Literal, NamedTuple

from ragen_pl.envs.boards import RANDOM_NAMES, BoardSplit, split_of_digest
from ragen_pl.envs.rubik.cube import ACTIONS, SOLVED, canonical, turn
from ragen_pl.envs.rubik.search import distance

Scramble = Literal["distance", "turns"]
SHARED_DISTANCE = 3
"""Starts up to this distance belong to every split."""
FARTHEST_START = 12
"""Maximum distance of a start that is sought; 2 % of all cubes are farther away."""
_SLOTS = 20
"""Seeds after which the mix of lengths repeats."""
_MAX_TRIES = 20_000


class ScrambledCube(NamedTuple):
    """A scrambled cube and the fewest turns that solve it."""

    cube: str
    distance: int


def canonical_digest(cube: str) -> str:
    """Return a hash that is equal for all ways to hold, color or mirror a cube."""
    return hashlib.sha256(canonical(cube).encode()).hexdigest()


def belongs_to(start: ScrambledCube, split: BoardSplit) -> bool:
    """Return whether a split has a start."""
    if start.distance <= SHARED_DISTANCE:
        return True
    return split_of_digest(canonical_digest(start.cube)) == split


def length_of_seed(seed: int, shortest: int, longest: int) -> int:
    """Return the length of a seed's scramble, evenly mixed over any 20 consecutive seeds."""
    return shortest + seed % _SLOTS * (longest - shortest + 1) // _SLOTS


# Cached, since the members of a group reset to the same cube one after another.
@lru_cache(maxsize=4096)
def sample_start(
    seed: int, scramble: Scramble, shortest: int, longest: int, split: BoardSplit
) -> ScrambledCube:
    """Return the start that a seed decides: scrambled and in the split, not solved.

    Raises:
        ValueError: if none is found.
    """
    rng = random.Random(f"rubik {RANDOM_NAMES[split]} {scramble} {shortest} {longest} {seed}")
    length = length_of_seed(seed, shortest, longest)
    for _ in range(_MAX_TRIES):
        start = _scrambled(rng, length)
        is_wanted = start.distance == length if scramble == "distance" else start.distance > 0
        if is_wanted and belongs_to(start, split):
            return start
    raise ValueError(
        f"scramble: {scramble!r} of {length} turns gave no cube of split {split!r} in {_MAX_TRIES} "
        "tries"
    )


def _scrambled(rng: random.Random, length: int) -> ScrambledCube:
    """Return a cube after random turns, none of which undoes the one before it."""
    cube, undoing = SOLVED, ""
    for _ in range(length):
        name = rng.choice([each for each in ACTIONS if each != undoing])
        cube, undoing = turn(cube, name), inverse(name)
    found = distance(cube)
    assert found is not None, cube
    return ScrambledCube(cube, found)


def inverse(action: str) -> str:
    """Return the turn that undoes a turn."""
    return action[0] if len(action) == 2 else f"{action}'"
