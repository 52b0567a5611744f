"""Planning on a slippery lake: exact values, the expert's plan, the turn protocol's optimum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ragen_pl.envs.thoughts import progress

ACTIONS = ("Left", "Down", "Right", "Up")
"""In rotational order: the neighbors in this tuple are the sides to which a move can slip."""
_OFFSETS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_LONGEST_SEQUENCE = 7
_TIE = 1e-12

Floats = npt.NDArray[np.float64]


class Lake(NamedTuple):
    """A map and its slipperiness; cells are numbered row by row, holes are a bit mask."""

    size: int
    holes: int
    goal: int
    intended: float


def neighbor(size: int, cell: int, action: int) -> int:
    """Return the cell to which an action leads without slipping; at the edge, the player stays."""
    down, right = _OFFSETS[action]
    row = min(max(cell // size + down, 0), size - 1)
    column = min(max(cell % size + right, 0), size - 1)
    return row * size + column


def slip(action: int, chance: float, intended: float) -> int:
    """Return the direction taken, given ``chance``, a uniform random number in [0, 1)."""
    if chance < intended:
        return action
    return (action + (1 if chance < (1.0 + intended) / 2 else -1)) % 4


@lru_cache(maxsize=1024)
def distances(lake: Lake) -> tuple[int | None, ...]:
    """Return the fewest moves from every cell to the goal without slipping; None without a path."""
    found: dict[int, int] = {lake.goal: 0}
    layer = [lake.goal]
    while layer:
        following = []
        for cell in layer:
            for action in range(4):
                near = neighbor(lake.size, cell, action)
                if near not in found and not lake.holes >> near & 1:
                    found[near] = found[cell] + 1
                    following.append(near)
        layer = following
    return tuple(found.get(cell) for cell in range(lake.size**2))


@lru_cache(maxsize=256)
def _transitions(lake: Lake) -> tuple[Floats, Floats]:
    """Return two arrays of probabilities: (action, cell, next cell) of moves after which play goes
    on, and (action, cell) of stepping onto the goal.
    """
    count = lake.size**2
    onward, win = np.zeros((4, count, count)), np.zeros((4, count))
    side = (1.0 - lake.intended) / 2
    for action in range(4):
        for cell in range(count):
            if cell == lake.goal or lake.holes >> cell & 1:
                continue
            for turn, share in ((0, lake.intended), (1, side), (-1, side)):
                near = neighbor(lake.size, cell, (action + turn) % 4)
                if near == lake.goal:
                    win[action, cell] += share
                elif not lake.holes >> near & 1:
                    onward[action, cell, near] += share
    return onward, win


@lru_cache(maxsize=256)
def action_values(lake: Lake, horizon: int) -> tuple[Floats, ...]:
    """Return the probability of reaching the goal as (action, cell), for every number of actions
    left up to ``horizon`` (index 0 holds zeros), if every later action is chosen with the state
    known (finite-horizon value iteration).
    """
    onward, win = _transitions(lake)
    values = np.zeros(lake.size**2)
    table = [np.zeros((4, lake.size**2))]
    for _ in range(horizon):
        table.append(win + onward @ values)
        values = table[-1].max(axis=0)
    return tuple(table)


@lru_cache(maxsize=1 << 14)
def intended_plan(lake: Lake, cell: int, actions_left: int) -> tuple[str, ...] | None:
    """Return the actions of the best policy if nothing slips; None if the goal is out of reach.

    Each action has the highest value among those after which the goal can still be reached in
    time without slipping, so the plan always ends there. Among equal values, the shorter path wins.
    """
    away = distances(lake)
    plan: list[str] = []
    while cell != lake.goal:
        left = actions_left - len(plan)
        ways: list[tuple[int, int, int]] = []
        for action in range(4):
            near = neighbor(lake.size, cell, action)
            distance = away[near]
            if not lake.holes >> near & 1 and distance is not None and distance < left:
                ways.append((distance, action, near))
        if not ways:
            return None
        values = action_values(lake, left)[left][:, cell]
        highest = max(values[action] for _, action, _ in ways)
        _, action, cell = min(way for way in ways if values[way[1]] >= highest - _TIE)
        plan.append(ACTIONS[action])
    return tuple(plan)


def reaches_goal(lake: Lake, cell: int, plan: tuple[str, ...]) -> bool:
    """Return whether a plan, without slipping, ends on the goal and meets neither hole nor goal
    before its end.
    """
    for name in plan:
        if cell == lake.goal or lake.holes >> cell & 1:
            return False
        cell = neighbor(lake.size, cell, ACTIONS.index(name))
    return cell == lake.goal


def path_progress(lake: Lake, cell: int, path: Sequence[str]) -> float:
    """Return how far a path leads if nothing slips, in [0, 1]; 1 only if it ends on the goal.

    The path is followed up to the first step into a hole, or the first word that is no action. The
    progress is the share of the shortest way that is then behind. Of a path that goes on after the
    goal, it is the share of the steps before.
    """
    away = distances(lake)
    start, steps = away[cell], 0
    if start is None:
        return 0.0
    for name in path:
        if cell == lake.goal or name not in ACTIONS:
            break
        near = neighbor(lake.size, cell, ACTIONS.index(name))
        if lake.holes >> near & 1:
            break
        cell, steps = near, steps + 1
    if cell == lake.goal:
        return steps / len(path) if path else 1.0
    rest = away[cell]
    assert rest is not None
    return progress(start, rest)


def optimum(
    lake: Lake, cell: int, *, max_turns: int, max_actions_per_turn: int, max_actions: int
) -> float:
    """Return the highest probability of reaching the goal under the turn protocol, exactly.

    In each turn the agent sees the state and commits to a sequence of actions. Dynamic programming
    over (cell, turns left, actions left); within a turn every sequence is evaluated backwards,
    for all cells at once.
    """
    limits = {
        "max_turns": max_turns,
        "max_actions_per_turn": max_actions_per_turn,
        "max_actions": max_actions,
    }
    for key, limit in limits.items():
        if limit <= 0:
            raise ValueError(f"{key}: {limit} is not positive")
    longest = min(max_actions_per_turn, max_actions)
    if longest > _LONGEST_SEQUENCE:
        raise ValueError(
            f"max_actions_per_turn: {max_actions_per_turn} means 4**{longest} sequences a turn;"
            f" at most {_LONGEST_SEQUENCE} can be evaluated"
        )
    onward, win = _transitions(lake)
    count = lake.size**2
    later = [np.zeros(count)] * (max_actions + 1)
    for _ in range(max_turns):
        now = [np.zeros(count)]
        for left in range(1, max_actions + 1):
            best = np.zeros(count)
            for length in range(1, min(longest, left) + 1):
                values = later[left - length][None]
                for _ in range(length):
                    # (sequences, cells) -> (4 * sequences, cells): one action put in front.
                    values = (win[:, None] + values @ onward.transpose(0, 2, 1)).reshape(-1, count)
                best = np.maximum(best, values.max(axis=0))
            now.append(best)
        later = now
    return float(later[max_actions][cell])
