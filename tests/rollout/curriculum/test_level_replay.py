"""Starts are played again by score and age."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import LevelReplay, choose_starts, saved_progress
from ragen_pl.rollout.env_starts import EnvStarts
from ragen_pl.rollout.tallies import Tally
from tests.support.lamps import Lamp

POOL = [GroupSeed(number, 100 + number) for number in range(8)]


def known(count: int, **gains: float) -> dict[str, Tally]:
    """Remember starts 0, 1, … that were just played; without a gain but for those named."""
    return {str(n): Tally(0.0, 1.0, gains.get(f"s{n}", 0.0)) for n in range(count)}


def test_without_a_memory_all_starts_are_new() -> None:
    assert choose_starts(LevelReplay(), Lamp(), POOL, 8, {}, random.Random(0)) == POOL


def test_half_are_replayed_by_score_and_the_rest_are_the_next_new_ones() -> None:
    progress = known(20, s3=1.0, s11=0.9)
    curriculum = LevelReplay(score_temperature=0.1, staleness=0.0)
    seen = Counter[int]()
    for seed in range(50):
        chosen = choose_starts(curriculum, Lamp(), POOL, 8, progress, random.Random(seed))
        assert [start.seed for start in chosen[:4]] == [100, 101, 102, 103]
        assert [start.weight for start in chosen[:4]] == [2.0] * 4, "they stand for all eight"
        replayed = chosen[4:]
        assert len({start.seed for start in replayed}) == 4
        assert all(start.weight < 1e-3 for start in replayed), "not the environment's own mix"
        seen.update(start.seed for start in replayed)
    assert seen[3] == seen[11] == 50
    assert all(start < 20 for start in seen)


@pytest.mark.parametrize(
    ("wanted", "replay", "expected"),
    [(1, 0.6, 0.0), (2, 0.75, 1.0), (4, 0.9, 3.0), (3, 0.5, 1.5), (8, 0.1, 0.8)],
)
def test_the_share_holds_on_average_and_some_starts_are_always_new(
    wanted: int, replay: float, expected: float
) -> None:
    curriculum, tries = LevelReplay(replay=replay), 400
    replayed = []
    for seed in range(tries):
        chosen = choose_starts(curriculum, Lamp(), POOL, wanted, known(30), random.Random(seed))
        replayed.append(sum(start.seed < 100 for start in chosen))
    assert max(replayed) < wanted
    assert sum(replayed) / tries == pytest.approx(expected, abs=0.1)


def test_few_remembered_starts_are_not_replayed_for_certain() -> None:
    chosen = choose_starts(LevelReplay(), Lamp(), POOL, 8, known(4), random.Random(0))
    assert [start.seed >= 100 for start in chosen] == [True] * 6 + [False] * 2


def test_priorities_are_the_papers_mixture_of_rank_and_staleness() -> None:
    curriculum = LevelReplay(score_temperature=0.5, staleness=0.25)
    progress = known(3, s1=0.8, s2=0.3)
    even = curriculum.priorities(progress)
    by_rank = {"1": 1.0, "2": 2**-2, "0": 3**-2}
    total = sum(by_rank.values())
    for seed, rank in by_rank.items():
        assert even[seed] == pytest.approx(0.75 * rank / total + 0.25 / 3), "all equally old"
    older = curriculum.learn(progress, {"1": Tally(1.0, 4.0, 3.2)})
    older = curriculum.learn(older, {"0": Tally(0.0, 4.0, 0.0)})
    aged = curriculum.priorities(older)
    ages = {"0": 0.0, "1": 1.0, "2": 2.0}
    for seed, rank in by_rank.items():
        assert aged[seed] == pytest.approx(0.75 * rank / total + 0.25 * ages[seed] / 3)
    assert sum(aged.values()) == pytest.approx(1.0)


def test_the_latest_score_counts_and_the_lowest_are_forgotten() -> None:
    curriculum = LevelReplay(memory=2)
    progress = curriculum.learn({}, {"5": Tally(2.0, 4.0, 4.0), "6": Tally(1.0, 4.0, 2.0)})
    assert {seed: tally.gain for seed, tally in progress.items()} == {"5": 1.0, "6": 0.5}
    progress = curriculum.learn(progress, {"5": Tally(4.0, 4.0, 0.0), "7": Tally(2.0, 4.0, 3.0)})
    assert {seed: round(tally.gain, 9) for seed, tally in progress.items()} == {"6": 0.5, "7": 0.75}


@pytest.mark.parametrize(
    ("key", "value"),
    [("replay", 0.0), ("replay", 1.0), ("memory", 0), ("score_temperature", 0.0), ("staleness", 2)],
)
def test_values_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"curriculum\.{key} is {value}"):
        LevelReplay(**{key: value})  # type: ignore[arg-type]


def test_where_age_alone_counts_what_was_just_played_is_as_good_as_each_other() -> None:
    """Such a choice once ended the run."""
    progress = {seed: replace(tally, age=int(seed == "7")) for seed, tally in known(40).items()}
    drawn = Counter[int]()
    for seed in range(9):
        curriculum, rng = LevelReplay(staleness=1.0), random.Random(seed)
        chosen = choose_starts(curriculum, Lamp(), POOL, 8, progress, rng)
        drawn.update(start.seed for start in chosen[4:])
    assert drawn[7] == 9
    assert len(drawn) > 15


def test_a_start_is_replayed_once_in_an_iteration() -> None:
    """Also where dynamic sampling collects further."""
    starts = EnvStarts({"": Lamp()}, "", LevelReplay(memory=20), run_seed=0)
    state = {str(seed): Tally(1, 4, gains=float(seed % 4), age=seed % 3) for seed in range(20)}
    starts.load_state_dict(saved_progress(starts.curriculum, state))
    replayed = [
        start.seed
        for collection in range(3)
        for start in starts.choose(8, position=100, iteration=3, collection=collection)
        if start.seed < 20
    ]
    assert len(replayed) == len(set(replayed)) > 8
