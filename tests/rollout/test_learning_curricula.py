"""Curricula by what can be learned: learning progress over difficulties, replay of starts."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import LearningProgress, LevelReplay, choose_starts
from ragen_pl.rollout.stats import Tally, learning_gains, tally_by_difficulty, tally_by_start
from tests.support.doubles import make_group
from tests.support.lamps import Lamp, NamedLamp

POOL = [GroupSeed(number, 100 + number) for number in range(8)]


def test_gains_are_absolute_advantages() -> None:
    assert learning_gains([]) == []
    assert learning_gains([2.0, 2.0, 2.0]) == [0.0] * 3
    assert learning_gains([0.1 + 0.2, 0.3]) == [0.0] * 2, "rounding is no gain"
    assert learning_gains([0.0, 1.0]) == [1.0, 1.0]
    assert learning_gains([0.0, 0.0, 0.0, 4.0]) == pytest.approx([3**-0.5] * 3 + [3**0.5])


@pytest.mark.parametrize("wins", range(1, 8))
def test_the_mean_gain_of_wins_and_losses_has_a_closed_form(wins: int) -> None:
    p = wins / 8
    gains = learning_gains([1.0] * wins + [0.0] * (8 - wins))
    assert sum(gains) / 8 == pytest.approx(2 * math.sqrt(p * (1 - p)))


def test_tallies_have_the_gains_of_groups_not_of_their_union() -> None:
    """Half of the starts are always solved: success is 1/2, but there is nothing to learn."""
    groups = [make_group([0.0, 0.0], group_id=0), make_group([1.0, 1.0], group_id=1)]
    (tally,) = tally_by_difficulty(groups).values()
    assert (tally.success, tally.gain) == (0.5, 0.0)
    mixed = tally_by_start([make_group([0.0, 1.0], seed=7), make_group([1.0], seed=9)])
    assert mixed == {"7": Tally(1.0, 2.0, 2.0), "9": Tally(1.0, 1.0, 0.0)}
    assert tally_by_start([make_group([0.0, 5.0], broken=[0])])["1000"] == Tally(1.0, 1.0, 0.0)


def test_learning_progress_prefers_what_teaches_by_a_softmax() -> None:
    weigh = LearningProgress(temperature=0.5).weigh
    teaching, solved = Tally(4.0, 8.0, 6.0), Tally(8.0, 8.0, 0.0)
    assert weigh("a", teaching) / weigh("b", solved) == pytest.approx(math.exp(0.75 / 0.5))
    assert weigh("new", None) == 1.0 >= weigh("a", teaching)
    assert LearningProgress().weight("a", 0.5) == 1.0


def test_learning_progress_sees_rewards_where_success_is_the_same() -> None:
    progress = {"lit": Tally(0.0, 8.0, 8.0), "dark": Tally(0.0, 8.0, 0.0)}
    curriculum, drawn = LearningProgress(temperature=0.2), Counter[str]()
    for seed in range(30):
        chosen = choose_starts(curriculum, NamedLamp(), POOL, 3, progress, random.Random(seed))
        drawn.update("lit" if start.seed % 2 else "dark" for start in chosen)
    assert drawn["lit"] > 10 * drawn["dark"]


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_are_positive(temperature: float) -> None:
    with pytest.raises(ValueError, match=r"curriculum\.temperature is"):
        LearningProgress(temperature=temperature)


# --- level replay ---------------------------------------------------------------------------------


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
        assert all(start.weight == 1.0 for start in chosen[:4])
        replayed = chosen[4:]
        assert len({start.seed for start in replayed}) == 4
        assert all(start.weight < 1e-3 for start in replayed), "not the environment's own mix"
        seen.update(start.seed for start in replayed)
    assert seen[3] == seen[11] == 50
    assert all(start < 20 for start in seen)


@pytest.mark.parametrize(("wanted", "replay"), [(1, 0.6), (2, 0.75), (4, 0.9)])
def test_some_starts_are_always_new(wanted: int, replay: float) -> None:
    curriculum = LevelReplay(replay=replay)
    chosen = choose_starts(curriculum, Lamp(), POOL, wanted, known(30), random.Random(0))
    assert sum(start.seed >= 100 for start in chosen) == wanted - int(replay * wanted)


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
