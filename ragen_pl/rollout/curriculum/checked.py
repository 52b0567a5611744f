"""The boundary to curricula, which may be a user's own classes.

What one of them raises, and any result that breaks its contract, becomes a ``ConfigError`` that
names the class, the method, what it returned and what it must return.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from numbers import Real

from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum.base import Curriculum
from ragen_pl.rollout.tallies import Tallies, Tally
from ragen_pl.runtime.user_classes import calling, contract_error, described
from ragen_pl.types import TrajectoryGroup


def check_choice(curriculum: Curriculum, env: TextEnv, seeds: Iterable[int]) -> None:
    """Check before a run that there is something to choose between.

    Raises:
        ConfigError: if there is not, as the curriculum says, or if it raises anything else.
    """
    with calling(curriculum, "check", "env, seeds"):
        try:
            curriculum.check(env, seeds)
        except ValueError as error:  # its way to say no
            raise ConfigError(str(error)) from error


def pool_size_of(curriculum: Curriculum, wanted: int) -> int:
    """Return the number of candidates from which starts are chosen.

    Raises:
        ConfigError: if it is no integer of 0 or more.
    """
    with calling(curriculum, "pool_size", "wanted"):
        given: object = curriculum.pool_size(wanted)
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise contract_error(curriculum, "pool_size", f"{given!r:.40}", "an integer of 0 or more")
    return given


def candidates_of(
    curriculum: Curriculum, pool: Sequence[GroupSeed], progress: Tallies, wanted: int
) -> list[GroupSeed]:
    """Return the starts to choose from.

    Raises:
        ConfigError: if they are no starts, or fewer than are wanted.
    """
    with calling(curriculum, "candidates", "pool, progress"):
        given: object = curriculum.candidates(list(pool), dict(progress))
    starts = _starts(curriculum, "candidates", given)
    if len(starts) < wanted:
        wanted_text = f"at least {wanted}, as many as are played, of a pool of {len(pool)}"
        raise contract_error(curriculum, "candidates", f"{len(starts)} starts", wanted_text)
    return starts


def chosen_by(
    curriculum: Curriculum,
    pool: Sequence[GroupSeed],
    difficulties: Sequence[str],
    wanted: int,
    progress: Tallies,
    rng: random.Random,
) -> list[GroupSeed]:
    """Return the starts that a curriculum chooses.

    Raises:
        ConfigError: if they are not as many different candidates as are wanted, or their weights
            are not positive and finite.
    """
    with calling(curriculum, "choose", "pool, difficulties, wanted, progress, rng"):
        given: object = curriculum.choose(
            list(pool), list(difficulties), wanted, dict(progress), rng
        )
    chosen = _starts(curriculum, "choose", given)
    weights: list[object] = [start.weight for start in chosen]
    if not all(isinstance(each, Real) and 0 < float(each) < math.inf for each in weights):
        told = f"starts with the weights {weights!r:.80}"
        raise contract_error(curriculum, "choose", told, "positive and finite weights")
    candidates = {(start.group_id, start.seed) for start in pool}
    distinct = {(start.group_id, start.seed) for start in chosen}
    if len(chosen) != wanted or len(distinct) != wanted or not distinct <= candidates:
        strange = len(distinct - candidates)
        told = f"{len(chosen)} starts, {len(distinct)} different ones" + (
            f", {strange} of them no candidates" if strange else ""
        )
        wanted_text = f"{wanted} different ones of the {len(pool)} candidates"
        raise contract_error(curriculum, "choose", told, wanted_text)
    return chosen


def tally_of(curriculum: Curriculum, groups: Sequence[TrajectoryGroup]) -> Tallies:
    """Return what a curriculum counts of groups.

    Raises:
        ConfigError: if it is no dict of tallies.
    """
    with calling(curriculum, "tally", "groups"):
        given: object = curriculum.tally(groups)
    return _tallies(curriculum, "tally", given)


def learned(curriculum: Curriculum, progress: Tallies, played: Tallies) -> Tallies:
    """Return the progress after an iteration.

    Raises:
        ConfigError: if it is no dict of tallies.
    """
    with calling(curriculum, "learn", "progress, played"):
        given: object = curriculum.learn(dict(progress), dict(played))
    return _tallies(curriculum, "learn", given)


def _starts(curriculum: Curriculum, method: str, given: object) -> list[GroupSeed]:
    if not isinstance(given, list | tuple):
        raise contract_error(curriculum, method, described(given), "a list of GroupSeed")
    wrong = next((each for each in given if not isinstance(each, GroupSeed)), None)
    if wrong is not None or None in given:
        told = f"{described(given)} with {wrong!r:.40} in it"
        raise contract_error(
            curriculum, method, told, "a list of GroupSeed, members of the pool it was given"
        )
    return list(given)


def _tallies(curriculum: Curriculum, method: str, given: object) -> Tallies:
    wanted = "a dict of Tally (ragen_pl.rollout.tallies) by difficulty or start, of finite numbers"
    if not isinstance(given, Mapping):
        raise contract_error(curriculum, method, described(given), wanted)
    for name, tally in given.items():
        is_sound = isinstance(name, str) and isinstance(tally, Tally)
        if not is_sound or not all(
            isinstance(each, Real) and math.isfinite(each) for each in astuple(tally)
        ):
            raise contract_error(curriculum, method, f"{tally!r:.60} for {name!r:.40}", wanted)
    return dict(given)
