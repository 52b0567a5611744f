"""Which difficulties a curriculum prefers, how often, and what it remembers."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs import Bandit, FrozenLake, Sokoban
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.collect import GroupSeed
from ragen_pl.rollout.curriculum import (
    UNKNOWN,
    ByDifficulty,
    LearningProgress,
    TargetSuccess,
    Uniform,
    choose_starts,
)
from ragen_pl.rollout.tallies import Tally
from tests.support.toy_env import Lamp, NamedLamp

NAMES = ("a",) * 9 + ("b",) * 6 + ("c",) * 4 + (UNKNOWN,)
POOL = [GroupSeed(number, 100 + number) for number in range(len(NAMES))]
PROGRESS = {"a": Tally(9.0, 10.0), "b": Tally(1.0, 2.0)}
"""With floor 0.16 the weights of a, b and c are 0.36, 1 and 1."""


def test_a_target_of_one_half_weighs_by_the_variance_of_success() -> None:
    weigh = TargetSuccess(floor=0.01).weight
    for success in (0.1, 0.25, 0.5, 0.9):
        assert weigh("a", success) == pytest.approx(4 * success * (1 - success))


@given(st.floats(0.05, 0.95), st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_no_weight_is_above_that_of_the_target_or_below_the_floor(
    target: float, success: float, floor: float
) -> None:
    curriculum = TargetSuccess(target=target, floor=floor)
    assert curriculum.weight("a", target) == pytest.approx(1.0)
    assert floor <= curriculum.weight("a", success) <= 1.0 + 1e-9
    assert curriculum.weight("a", None) == 1.0


def test_weights_fall_on_both_sides_of_the_target() -> None:
    weights = [TargetSuccess(target=0.7, floor=0.01).weight("a", n / 20) for n in range(21)]
    assert weights[:15] == sorted(weights[:15])
    assert weights[14:] == sorted(weights[14:], reverse=True)
    assert weights[0] == weights[20] == 0.01


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target", 0.0),
        ("target", 1.0),
        ("floor", 0.0),
        ("floor", 1.1),
        ("decay", 1.0),
        ("decay", -0.1),
        ("pool_factor", 1),
    ],
)
def test_a_number_out_of_range_is_refused(key: str, value: float) -> None:
    arguments: Any = {key: value}
    with pytest.raises(ValueError, match=rf"curriculum\.{key} is {value}; it must"):
        TargetSuccess(**arguments)


def draws(count: int = 4000) -> list[list[GroupSeed]]:
    curriculum = TargetSuccess()
    return [curriculum.choose(POOL, NAMES, 5, PROGRESS, random.Random(n)) for n in range(count)]


def test_the_frequency_of_a_difficulty_is_in_proportion_to_its_weight() -> None:
    found = Counter(NAMES[start.group_id] for chosen in draws() for start in chosen)
    shares = {name: found[name] / (5 * 4000) for name in "abc"}
    known = 1 - 1 / 20  # the start of unknown difficulty keeps its share
    assert found[UNKNOWN] / (5 * 4000) == pytest.approx(1 / 20, abs=0.005)
    assert shares == pytest.approx(
        {"a": known * 0.36 / 2.36, "b": known / 2.36, "c": known / 2.36}, abs=0.01
    )


def test_candidates_of_one_difficulty_are_equally_likely() -> None:
    found = Counter(start.group_id for chosen in draws() for start in chosen)
    of_a = [found[number] for number in range(9)]
    assert max(of_a) - min(of_a) < 6 * (sum(of_a) / 9) ** 0.5


def test_a_choice_has_no_start_twice_and_keeps_the_order_of_the_stream() -> None:
    for chosen in draws(200):
        assert len(chosen) == 5
        ids = [start.group_id for start in chosen]
        assert ids == sorted(set(ids))
        assert {replace(start, weight=1.0) for start in chosen} <= set(POOL)


def test_weighted_averages_are_those_of_all_candidates() -> None:
    """Inverse probabilities undo the choice, whatever is averaged."""
    values = [random.Random(number).random() for number in range(len(POOL))]
    estimates = [sum(values[s.group_id] * s.weight for s in chosen) / 5 for chosen in draws()]
    assert sum(estimates) / len(estimates) == pytest.approx(sum(values) / len(values), rel=0.01)


def test_a_difficulty_that_was_never_played_is_chosen_most() -> None:
    progress = {"a": Tally(10.0, 10.0), "b": Tally(0.0, 10.0)}
    curriculum, found = TargetSuccess(), Counter[str]()
    for number in range(500):
        chosen = curriculum.choose(POOL, NAMES, 4, progress, random.Random(number))
        found.update(NAMES[start.group_id] for start in chosen)
    assert found["c"] > 4 * max(found["a"], found["b"]) > 0


def test_equal_success_takes_the_same_share_of_every_difficulty() -> None:
    curriculum = TargetSuccess()
    names = ("a",) * 12 + ("b",) * 8
    chosen = curriculum.choose(POOL, names, 10, {}, random.Random(0))
    assert Counter(names[start.group_id] for start in chosen) == {"a": 5, "b": 5}
    assert {round(start.weight, 9) for start in chosen} == {1.2, 0.8}


def test_progress_is_a_decayed_count_of_what_was_played() -> None:
    curriculum = TargetSuccess(decay=0.5)
    first = curriculum.learn({}, {"a": Tally(3.0, 4.0), UNKNOWN: Tally(0.0, 4.0)})
    assert first == {"a": Tally(3.0, 4.0)}
    second = curriculum.learn(first, {"a": Tally(1.0, 4.0), "b": Tally(2.0, 2.0)})
    assert second == {"a": Tally(2.5, 6.0), "b": Tally(2.0, 2.0)}
    assert second["a"].success == pytest.approx(2.5 / 6)


def test_what_was_not_played_for_long_is_forgotten() -> None:
    curriculum, progress = TargetSuccess(decay=0.5), {"a": Tally(8.0, 8.0)}
    lengths = []
    for _ in range(20):
        progress = dict(curriculum.learn(progress, {"b": Tally(1.0, 2.0)}))
        lengths.append(len(progress))
    assert lengths == [2] * 9 + [1] * 11  # 8 / 2^10 is below a hundredth


@pytest.mark.parametrize("env", [NamedLamp(), Sokoban(), FrozenLake(), Bandit("named")])
def test_difficulties_are_found(env: Any) -> None:
    TargetSuccess().check(env, range(64))


@pytest.mark.parametrize(
    ("env", "fault"),
    [
        (Lamp(), "Lamp names no difficulty"),
        (Bandit(), "Bandit names only the difficulty 'Phoenix-Dragon'"),
    ],
)
def test_an_environment_with_nothing_to_choose_between_is_refused(env: Any, fault: str) -> None:
    message = rf"curriculum TargetSuccess chooses by difficulty, but {fault} at the first 64 "
    remedy = r"training starts: .* or set data\.curriculum to Uniform \(data\.mixture\.curricula"
    with pytest.raises(ValueError, match=message + remedy):
        TargetSuccess().check(env, range(64))
    Uniform().check(env, range(64))


@dataclass(frozen=True)
class Hardest(ByDifficulty):
    """The curriculum of the documentation."""

    floor: float = 0.1

    def weight(self, difficulty: str, success: float | None) -> float:
        return 1.0 if success is None else max(self.floor, 1.0 - success)


def test_a_curriculum_of_ones_own_is_a_weight() -> None:
    progress = {"dark": Tally(9.0, 10.0), "lit": Tally(1.0, 10.0)}
    chosen = choose_starts(Hardest(), NamedLamp(), POOL, 10, progress, random.Random(0))
    assert sum(start.seed % 2 for start in chosen) == 9


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_an_error(weight: float) -> None:
    @dataclass(frozen=True)
    class Wrong(ByDifficulty):
        def weight(self, difficulty: str, success: float | None) -> float:
            return weight

    with pytest.raises(ConfigError, match=r"curriculum: Wrong\.weight\('dark', None"):
        choose_starts(Wrong(), NamedLamp(), POOL, 10, {}, random.Random(0))


def test_a_weight_of_another_type_or_that_raises_is_told() -> None:
    @dataclass(frozen=True)
    class Wordy(ByDifficulty):
        def weight(self, difficulty: str, success: float | None) -> Any:
            return "1"

    @dataclass(frozen=True)
    class Broken(ByDifficulty):
        def weight(self, difficulty: str, success: float | None) -> float:
            return 1 - success  # type: ignore[operator]  # None at first

    with pytest.raises(ConfigError, match=r"Wordy\.weight\('dark', None\) returned '1'"):
        choose_starts(Wordy(), NamedLamp(), POOL, 10, {}, random.Random(0))
    told = r"Broken\.weight raised TypeError.*test_by_difficulty.py:\d+\)\n .*weight\(difficulty, "
    with pytest.raises(ConfigError, match=told):
        choose_starts(Broken(), NamedLamp(), POOL, 10, {}, random.Random(0))


def test_progress_is_plain_data() -> None:
    progress = TargetSuccess().learn({}, {"a": Tally(3.0, 4.0)})
    text = json.dumps({name: [t.successes, t.trials] for name, t in progress.items()})
    assert {name: Tally(*counts) for name, counts in json.loads(text).items()} == progress


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
