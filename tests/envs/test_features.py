"""States as arrays: equal for equal states and different for different ones, on enumerations, and
the gymnasium view by which libraries of small agents play them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import FlattenObservation, TimeLimit

from ragen_pl.envs import Bandit, FrozenLake, Rubik, SearchQA, Sokoban, Sudoku, TextEnv
from ragen_pl.envs.arrays import Features, one_hot, planes
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.contract_kit.checks.features import check_features
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.eval_seeds import FIRST_EVAL_SEED
from ragen_pl.envs.feature_env import FeatureEnv
from ragen_pl.envs.workers import EnvHost
from ragen_pl.runtime.findings import Finding, Severity
from tests.support.faulty import FaultyLamp, always
from tests.support.lamps import Stairs

KINDS: list[Callable[[], TextEnv]] = [
    Sokoban,
    lambda: Sokoban(size=8, num_boxes=2),
    FrozenLake,
    Bandit,
    lambda: Bandit("named"),
    Rubik,
    Sudoku,
]
WITH_FEATURES = pytest.mark.parametrize("make", KINDS)


def successors(env: TextEnv, depth: int) -> Iterator[TextEnv]:
    """Yield the environment after at most ``depth`` actions, ends included."""
    first = env.get_state()
    layer, seen = [first], {env.anchor_key()}
    yield env
    for _ in range(depth):
        following = []
        for state, action in product(layer, env.actions or ()):
            env.reset(seed=1)
            env.set_state(state)
            _, _, terminated, truncated, _ = env.step(action)
            if env.anchor_key() in seen:
                continue
            seen.add(env.anchor_key())
            if not (terminated or truncated):
                following.append(env.get_state())
            yield env
        layer = following


def lakes() -> Iterator[TextEnv]:
    """Yield every state of 2×2 lakes."""
    env = FrozenLake(size=2)
    for goal, player, *frozen in product(range(4), range(4), *[(False, True)] * 4):
        holes = [cell for cell in range(4) if not frozen[cell] and cell != goal]
        state = {"size": 2, "holes": holes, "goal": goal, "player": player, "num_actions": 0}
        env.set_state(state)
        yield env


def of_starts(env: TextEnv, starts: int, depth: int) -> Iterator[TextEnv]:
    for seed in range(starts):
        env.reset(seed=seed)
        yield from successors(env, depth)


@pytest.mark.parametrize(
    ("states", "least"),
    [
        (lambda: lakes(), 100),
        (lambda: of_starts(Sokoban(), 6, 6), 100),
        (lambda: of_starts(Sokoban(size=8, num_boxes=2), 2, 4), 50),
        (lambda: of_starts(Rubik(max_actions=20), 2, 2), 200),
        (lambda: of_starts(Sudoku(fewest_empty=3, most_empty=3, max_actions=3), 2, 2), 10),
        (lambda: of_starts(Bandit("named"), 60, 1), 60),
    ],
    ids=["lake", "sokoban", "two boxes", "rubik", "sudoku", "bandit"],
)
def test_features_and_states_are_one_to_one(
    states: Callable[[], Iterator[TextEnv]], least: int
) -> None:
    pairs = {(env.anchor_key(), features_of(env).tobytes()) for env in states()}
    assert len(pairs) >= least
    assert len({key for key, _ in pairs}) == len({raw for _, raw in pairs}) == len(pairs)


def features_of(env: TextEnv) -> Features:
    features = env.features()
    assert features is not None
    return features


def test_planes_hold_the_cells_of_masks() -> None:
    left, right = planes((0b000_000_101, 0b100_010_000), 3)
    assert left.tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert right.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert one_hot((2, 0), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_features_do_not_tell_which_arm_is_the_better_one() -> None:
    for seed in range(8):
        shown = []
        for reversed_risk in (False, True):
            env = Bandit("named", reversed_risk=reversed_risk)
            env.reset(seed=seed)
            shown.append(features_of(env).tobytes())
        assert shown[0] == shown[1]


def test_features_reach_through_worker_processes() -> None:
    host = EnvHost(1, 30.0)
    try:
        there, here = host.wrap(Sokoban()), Sokoban()
        there.reset(seed=3)
        here.reset(seed=3)
        assert there.has_features
        assert np.array_equal(features_of(there), features_of(here))
        assert not host.wrap(SearchQA()).has_features
    finally:
        host.close()


class Shown(Stairs):
    """A lamp with features, of which subclasses spoil one thing."""

    def features(self) -> Any:
        return np.array([self.lit, self.is_over, 1], dtype=np.float32)


class Drifting(Shown):
    """Features that count how often they were asked for."""

    asked: ClassVar[int] = 0

    def features(self) -> Any:
        Drifting.asked += 1
        return super().features() * np.float32(0.999**Drifting.asked)


class Growing(Shown):
    """Features that are longer in the light."""

    def features(self) -> Any:
        return np.zeros(2 + self.lit, dtype=np.float32)


class Blind(Shown):
    """Features that leave the light out."""

    def features(self) -> Any:
        return super().features()[1:]


class Knowing(Shown):
    """Features with the step, which the text hides."""

    def features(self) -> Any:
        return np.array([self.lit, self.step_number / 2], dtype=np.float32)


class Loud(Shown):
    """Features beyond 1."""

    def features(self) -> Any:
        return super().features() * np.float32(3)


class Speaking(Shown):
    """Features of an environment of free text."""

    actions = None  # type: ignore[assignment]


def found_in(env: TextEnv) -> Finding:
    (finding,) = check_features(ExaminedEnv(env, "env", seconds=1.0))
    return finding


@pytest.mark.parametrize(
    ("kind", "level", "told"),
    [
        (Drifting, Severity.FAILURE, "differ"),
        (Growing, Severity.FAILURE, r"has features of the shape \(\d,\)"),
        (Speaking, Severity.FAILURE, "free text"),
        (Blind, Severity.WARNING, "have the features of another one"),
        (Knowing, Severity.WARNING, "look alike in render_text, but their features differ"),
        (Shown, Severity.OK, r"of \d+ states have the shape \(3,\); 2 actions"),
        (Stairs, Severity.OK, "has no features"),
    ],
)
def test_the_contract_kit_looks_at_features(
    kind: type[TextEnv], level: Severity, told: str
) -> None:
    finding = found_in(kind())
    assert finding.level is level, finding.text
    assert re.search(told, finding.text), finding.text


def test_numbers_beyond_one_break_the_contract() -> None:
    with pytest.raises(EnvError, match=r"features returned .* float32 from 0 to 1"):
        found_in(Loud())


@pytest.mark.filterwarnings("error")
@WITH_FEATURES
def test_gymnasium_s_checker_finds_nothing(make: Callable[[], TextEnv]) -> None:
    """Its check of render modes needs an environment registered under a name, so it is skipped."""
    check_env(FeatureEnv(make()), skip_render_check=True)


@WITH_FEATURES
def test_wrappers_run_on_the_view(make: Callable[[], TextEnv]) -> None:
    env = FlattenObservation(TimeLimit(FeatureEnv(make()), max_episode_steps=3))
    env.action_space.seed(0)
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        has_ended = False
        while not has_ended:
            assert observation in env.observation_space
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            has_ended = terminated or truncated
        assert isinstance(info["success"], bool)


def test_the_view_plays_as_the_environment_does() -> None:
    env, view = Rubik(), FeatureEnv(Rubik(), seeds=[7])
    features, info = view.reset(seed=0)
    env.reset(seed=7)
    assert info["start"] == 7
    assert np.array_equal(features, features_of(env))
    for number in (0, 5, 11):
        _, reward, *_ = env.step(env.actions[number])
        after, gained, *_ = view.step(np.int64(number))
        assert np.array_equal(after, features_of(env))
        assert gained == reward


class Noting(Stairs):
    """A lamp that notes the seeds of its starts, for all copies."""

    seeds: ClassVar[set[int]] = set()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        assert seed is not None
        Noting.seeds.add(seed)
        return super().reset(seed=seed, options=options)

    def features(self) -> Any:
        return np.array([self.lit], dtype=np.float32)


def test_whatever_seeds_a_library_gives_no_other_start_is_played() -> None:
    Noting.seeds.clear()
    view = FeatureEnv(Noting(), seeds=[3, 4, 5])
    for seed in [None, 0, FIRST_EVAL_SEED, *[None] * 40]:
        view.reset(seed=seed)
    assert Noting.seeds == {3, 4, 5}
    Noting.seeds.clear()
    view = FeatureEnv(Noting())
    for seed in [FIRST_EVAL_SEED, *[None] * 40]:
        view.reset(seed=seed)
    assert max(Noting.seeds) < FIRST_EVAL_SEED
    assert len(Noting.seeds) > 30


def test_a_seed_decides_the_episodes_that_follow() -> None:
    starts = []
    for seed in (1, 1, 2):
        view = FeatureEnv(FrozenLake())
        view.reset(seed=seed)
        starts.append([view.reset()[1]["start"] for _ in range(5)])
    assert starts[0] == starts[1] != starts[2]


class FaultyShown(FaultyLamp):
    """An environment that fails, with features."""

    def features(self) -> Any:
        return np.array([self.lit], dtype=np.float32)


def test_an_environment_that_fails_in_mid_episode_truncates_it() -> None:
    view = FeatureEnv(FaultyShown("step", RuntimeError("away"), always))
    view.reset(seed=0)
    _, reward, terminated, truncated, info = view.step(np.int64(0))
    assert (reward, terminated, truncated, info) == (0.0, False, True, {"success": False})
    with pytest.raises(RuntimeError, match="call reset first"):
        view.step(np.int64(0))


class Crowded(Shown):
    """Has a further action in the light."""

    @property
    def actions(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("on", "off", "wait")[: 2 + getattr(self, "lit", False)]


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (Growing(), r"features returned \(3,\); .* shape \(2,\), as in the first state"),
        (Crowded(), r"actions returned .*wait.*; it must return 2 actions, as in the first state"),
    ],
)
def test_states_of_another_shape_than_the_first_break_the_contract(env: TextEnv, told: str) -> None:
    view = FeatureEnv(env, seeds=[0])  # dark
    view._seeds = [1]
    with pytest.raises(EnvError, match=told):
        view.reset()


def test_starts_at_which_an_environment_fails_give_way_to_others() -> None:
    failing = FaultyShown("reset", RuntimeError("away"), lambda env: env.seed in (1, 2))
    view = FeatureEnv(failing, seeds=[0, 1, 2, 3])
    assert {view.reset()[1]["start"] for _ in range(40)} == {0, 3}
    with pytest.raises(EnvError, match="away"):
        FeatureEnv(FaultyShown("reset", RuntimeError("away"), always))


def test_what_cannot_be_seen_or_named_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"Stairs has no features.*write TextEnv\.features"):
        FeatureEnv(Stairs())
    with pytest.raises(ValueError, match=r"Speaking takes free text"):
        FeatureEnv(Speaking())
    with pytest.raises(ValueError, match="seeds: none is given"):
        FeatureEnv(Sokoban(), seeds=[])
