"""A collection's starts, chosen alike on every rank, and what a curriculum saves with the run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from ragen_pl.distributed.collectives import gather_objects, rank, world_size
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum.base import UNKNOWN, Curriculum, difficulty_of
from ragen_pl.rollout.curriculum.checked import candidates_of, chosen_by
from ragen_pl.rollout.tallies import Tallies, Tally


def saved_progress(curriculum: Curriculum, progress: Tallies) -> dict[str, Any]:
    """Return a curriculum's progress as plain data, with what its names stand for."""
    tallies = {name: list(astuple(tally)) for name, tally in progress.items()}
    return {"progress": tallies, "by_start": curriculum.by_start}


def restored_progress(curriculum: Curriculum, saved: Mapping[str, Any]) -> Tallies:
    """Return saved progress; none if it was not saved, as in older checkpoints, or if a curriculum
    of the other kind kept it, whose names are starts in place of difficulties."""
    if saved.get("by_start", curriculum.by_start) != curriculum.by_start:
        return {}
    return {name: Tally(*counts) for name, counts in saved.get("progress", {}).items()}


def choose_starts(
    curriculum: Curriculum,
    env: TextEnv,
    pool: Sequence[GroupSeed],
    wanted: int,
    progress: Tallies,
    rng: random.Random,
) -> list[GroupSeed]:
    """Choose a collection's starts from its candidates; every rank must call it, and gets the same
    ones.

    A start at which the environment fails is of unknown difficulty; if it is chosen, it fails again
    where it is played, and is reported there.

    Raises:
        ConfigError: if the curriculum raises, or does not return as many different candidates as
            are wanted.
    """
    pool = candidates_of(curriculum, pool, progress, wanted)
    if len(pool) == wanted:
        return pool
    names = [UNKNOWN] * len(pool) if curriculum.by_start else _difficulties(env, pool)
    return chosen_by(curriculum, pool, names, wanted, progress, rng)


def _difficulties(env: TextEnv, pool: Sequence[GroupSeed]) -> list[str]:
    """Return the difficulty of each candidate; each rank asks for its share of them."""
    checked, size = CheckedEnv(env), world_size()
    own = [difficulty_of(checked, start.seed) for start in pool[rank() :: size]]
    parts = gather_objects(own)
    return [parts[place % size][place // size] for place in range(len(pool))]
