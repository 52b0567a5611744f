"""Distances and shortest plans of the 2×2×2 cube, by search from both ends.

One corner is held fixed (``cube.recolored``), so that only U, R and F turn. From the solved cube
the search goes up to seven turns deep, as far as it is needed, and keeps what it finds (44,971
cubes); from the other end it goes deeper only for cubes that are farther away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile

from ragen_pl.envs.rubik.cube import ACTIONS, SOLVED, is_solved, recolored, turn
from ragen_pl.envs.thoughts import progress

FARTHEST = 14
"""Turns that the farthest cubes need."""
_DEPTH = 7
_TURNS = tuple(name for name in ACTIONS if name[0] in "URF")


@lru_cache(maxsize=_DEPTH + 1)
def positions_at(depth: int) -> frozenset[str]:
    """Return the recolored cubes that are ``depth`` turns, at most seven, from the solved one."""
    assert depth <= _DEPTH, depth
    if depth == 0:
        return frozenset((SOLVED,))
    nearer = positions_at(depth - 1) | (positions_at(depth - 2) if depth > 1 else frozenset())
    return frozenset(_neighbors(positions_at(depth - 1))) - nearer


def _neighbors(cubes: Iterable[str]) -> Iterable[str]:
    return (turn(cube, name) for cube in cubes for name in _TURNS)


def distance(cube: str, limit: int = FARTHEST) -> int | None:
    """Return the fewest turns that solve a cube; None if they are more than ``limit``."""
    return _recolored_distance(recolored(cube), limit)


@lru_cache(maxsize=1 << 16)
def _recolored_distance(cube: str, limit: int) -> int | None:
    for depth in range(min(limit, _DEPTH) + 1):
        if cube in positions_at(depth):
            return depth
    seen = layer = {cube}
    for turns in range(1, limit - _DEPTH + 1):
        layer = set(_neighbors(layer)) - seen
        if not layer.isdisjoint(positions_at(_DEPTH)):
            return _DEPTH + turns
        seen = seen | layer
    return None


@lru_cache(maxsize=1 << 12)
def shortest_plan(cube: str) -> tuple[str, ...]:
    """Return a shortest plan of U, R and F turns; among equally short ones the order of ``ACTIONS``
    decides."""
    left = distance(cube)
    assert left is not None, cube
    plan = []
    while left:
        left -= 1
        for name in _TURNS:
            after = turn(cube, name)
            if distance(after, left) is not None:
                break
        plan.append(name)
        cube = after
    return tuple(plan)


def solves(cube: str, plan: Sequence[str]) -> bool:
    """Return whether the last turn of a plan, and none before it, solves a cube."""
    for name in plan:
        if is_solved(cube):
            return False
        cube = turn(cube, name)
    return is_solved(cube)


def plan_progress(cube: str, plan: Sequence[str]) -> float:
    """Return how far a plan leads, in [0, 1]; 1 only if its last turn solves the cube.

    The plan is followed up to the first word that is no turn. The progress is the share of the
    fewest turns that is then behind. Of a plan that goes on after the solution, it is the share of
    the turns before.
    """
    start, followed = cube, 0
    for name in takewhile(ACTIONS.__contains__, plan):
        if is_solved(cube):
            break
        cube, followed = turn(cube, name), followed + 1
    if is_solved(cube):
        return followed / len(plan) if plan else 1.0
    before = distance(start)
    assert before is not None, start
    after = distance(cube, before - 1)
    return 0.0 if after is None else progress(before, after)
