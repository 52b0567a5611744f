"""Choice of the trajectories that a report shows, when a run recorded more than fit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from ragen_pl.report.recorded_trajectories import ROLLOUT, Entry

T = TypeVar("T")


def choose(entries: Sequence[Entry], limit: int) -> list[Entry]:
    """Choose at most ``limit`` trajectories, in the order given.

    Training rollouts and evaluations get half each, and what one does not need goes to the other.
    Rollouts: whole groups, taken in turn from iterations that are spread evenly. Evaluations:
    initial states, each with all its moments, so that one can be followed through training; taken
    in turn from evaluation sets and difficulties, solved and failed ones alternating.
    """
    rollouts = [entry for entry in entries if entry.source == ROLLOUT]
    others = [entry for entry in entries if entry.source != ROLLOUT]
    room = max(limit // 2, limit - len(others))
    kept = _take(_groups(rollouts), room)
    kept += _take(_starts(others), limit - len(kept))
    ids = {id(entry) for entry in kept}
    return [entry for entry in entries if id(entry) in ids]


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """List the groups of rollouts, those of spread iterations first."""
    groups = list(_gather(entries, lambda e: (e.iteration, e.path, e.group)).values())
    by_iteration = _gather(groups, lambda group: group[0].iteration)
    return _in_turn([by_iteration[key] for key in _spread(list(by_iteration))])


def _starts(entries: Sequence[Entry]) -> list[list[Entry]]:
    """List the initial states of evaluations, varied ones first."""
    starts = list(_gather(entries, lambda e: (e.eval_set, e.env, e.seed)).values())
    starts.sort(key=len, reverse=True)  # old evaluations may have been thinned to some starts

    def kind(start: list[Entry]) -> Hashable:
        newest = max(start, key=lambda entry: entry.iteration or 0)
        return newest.eval_set, newest.difficulty, newest.success

    return _in_turn(list(_gather(starts, kind).values()))


def _take(bundles: Iterable[list[Entry]], room: int) -> list[Entry]:
    """Take bundles as long as they fit; a bundle that alone is too large is thinned out."""
    kept: list[Entry] = []
    for bundle in bundles:
        left = room - len(kept)
        if left <= 0:
            break
        if len(bundle) <= left:
            kept += bundle
        elif not kept:
            kept += [bundle[place] for place in _spread(list(range(len(bundle))))[:left]]
    return kept


def _gather(items: Iterable[T], key: Callable[[T], Hashable]) -> dict[Hashable, list[T]]:
    found: dict[Hashable, list[T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _in_turn(columns: Sequence[Sequence[T]]) -> list[T]:
    """Take the first of each, then the second of each, and so on."""
    missing = object()
    rounds = zip_longest(*columns, fillvalue=missing)
    return [item for each in rounds for item in each if item is not missing]  # type: ignore[misc]


def _spread(items: Sequence[T]) -> list[T]:
    """Reorder items so that every beginning of the list is spread over all: the ends first, then
    middles of what is left."""
    count = len(items)
    if count < 3:
        return list(items)
    order, seen, step = [0, count - 1], {0, count - 1}, 1.0
    while len(order) < count:
        step /= 2
        for place in (round(k * step * (count - 1)) for k in range(1, round(1 / step), 2)):
            if place not in seen:
                seen.add(place)
                order.append(place)
        if step * (count - 1) < 0.5:
            order += [place for place in range(count) if place not in seen]
            break
    return [items[place] for place in order]
