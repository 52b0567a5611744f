"""Choose the starts of an evaluation set, and tell which of them training has, too."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ragen_pl.envs.base import TextEnv

_LOG = logging.getLogger(__name__)

FIRST_EVAL_SEED = (1 << 32) - (1 << 24)
"""Evaluation sets' seeds are from here to 2^32, which no run takes for training (``collection``).
Packages that are seeded through numpy take no larger ones. A multiple of 20, for those that give
each of 20 seeds in turn a difficulty."""
_NUM_SEEDS = 1 << 24
_STRIDE = 1000
"""A multiple of 20, so a replacement asks for the same difficulty as the seed it replaces."""
_MAX_TRIES = 64
_MAX_SIZE = _NUM_SEEDS - _MAX_TRIES * _STRIDE


def eval_seeds(env: TextEnv, size: int) -> list[int]:
    """Return ``size`` seeds whose starts differ as far as the environment has that many.

    The ``i``-th is ``FIRST_EVAL_SEED + i``, or the first after it in steps of 1000 with a start
    not seen before, under ``start_key``. After 64 tries the repeat stays: a bandit has few starts.
    Seeds whose reset raises are passed over, which one line of the log says.

    Raises:
        ValueError: for a size that is not possible, and when all 64 tries raised.
    """
    if not 0 < size <= _MAX_SIZE:
        raise ValueError(
            f"size: {size} is not between 1 and {_MAX_SIZE}; an evaluation set needs at least "
            f"one start"
        )
    env = copy.deepcopy(env)
    seen: set[str] = set()
    seeds: list[int] = []
    broken: list[tuple[int, Exception]] = []
    for place in range(size):
        first = FIRST_EVAL_SEED + place
        repeat = None
        for seed in range(first, first + _MAX_TRIES * _STRIDE, _STRIDE):
            try:
                key = _key_of_start(env, seed)
            except Exception as error:  # the boundary to user code: any error is theirs
                broken.append((seed, error))
                continue
            if key not in seen:
                break
            repeat = seed if repeat is None else repeat
        else:
            if repeat is None:
                raise _nothing_starts(env, broken)
            seed = repeat
        seen.add(key)
        seeds.append(seed)
    if broken:
        seed, cause = broken[0]
        _LOG.warning(
            "environment %s raised in reset for %d of an evaluation set's seeds, such as %d (%s: "
            "%s); other "
            "seeds take their place",
            *(env.name, len(broken), seed, type(cause).__name__, cause),
        )
    return seeds


def _key_of_start(env: TextEnv, seed: int) -> str:
    env.reset(seed=seed, options={"noise_seed": 0})
    return env.start_key()


def _nothing_starts(env: TextEnv, broken: Sequence[tuple[int, Exception]]) -> ValueError:
    seed, error = broken[-1]
    return ValueError(
        f"{type(env).__name__} gave an evaluation set no start: {_MAX_TRIES} seeds in a row "
        f"raised, at last "
        f"reset(seed={seed}) {type(error).__name__}: {error}"
    )


class Overlap(NamedTuple):
    """Count how far an evaluation set's starts are training starts."""

    shared: int
    starts: int
    """Different ones on the evaluation set."""


def overlap(
    eval_set: TextEnv, seeds: Iterable[int], env: TextEnv, training_seeds: Iterable[int]
) -> Overlap:
    """Count an evaluation set's starts that some training seeds give as well; a seed whose reset
    raises gives none."""
    wanted = set(_keys(eval_set, seeds))
    missing = set(wanted)
    for key in _keys(env, training_seeds):
        missing.discard(key)
        if not missing:
            break
    return Overlap(len(wanted) - len(missing), len(wanted))


def _keys(env: TextEnv, seeds: Iterable[int]) -> Iterator[str]:
    env = copy.deepcopy(env)
    for seed in seeds:
        try:
            key = _key_of_start(env, seed)
        except Exception:  # the boundary to user code: it is told where the start is played
            continue
        yield key
