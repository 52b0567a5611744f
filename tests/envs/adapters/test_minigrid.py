"""Levels of MiniGrid and BabyAI in words: the view, the bot, and what is refused."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("minigrid", reason="needs the extra envs: pip install -e '.[envs]'")

from ragen_pl.envs.adapters import MiniGrid
from ragen_pl.envs.adapters.minigrid import _drawn, _listed
from ragen_pl.envs.workers import EnvHost
from ragen_pl.errors import ConfigError

EMPTY, WALL, DOOR, KEY, BALL = 1, 2, 4, 5, 6


def view(*things: tuple[int, int, int, int, int]) -> Any:
    """Make a view of 7 × 7 cells from (ahead, right, kind, color, state) and free cells."""
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[:, :, 0] = EMPTY
    for ahead, right, *cell in things:
        image[3 + right, 6 - ahead] = cell
    return image


def test_things_in_view_are_listed_with_their_places_the_nearest_first() -> None:
    things = [(3, -2, KEY, 4, 0), (1, 0, BALL, 2, 0), (0, 2, DOOR, 0, 2)]
    assert _listed(view(*things)) == (
        "You see blue ball 1 ahead, locked red door 2 right, yellow key 3 ahead 2 left"
    )
    assert _listed(view()) == "You see nothing"


def test_only_the_nearest_walls_are_listed() -> None:
    walls = [(2, 0), (4, 0), (0, -1), (0, -3), (3, 1)]
    assert _listed(view(*((a, r, WALL, 5, 0) for a, r in walls))) == (
        "You see wall 1 left, wall 2 ahead"
    )


def test_the_grid_has_two_letters_a_cell() -> None:
    drawn = _drawn(view((1, 0, DOOR, 3, 1), (0, -3, WALL, 5, 0), (6, 3, BALL, 1, 0))).split("\n")
    assert drawn[-2:] == [".. .. .. pd .. .. ..", "## .. .. ^^ .. .. .."]
    assert drawn[0] == ".. .. .. .. .. .. go"
    assert {len(row) for row in drawn} == {20}


@pytest.mark.parametrize("view", ["objects", "grid"])
def test_features_tell_what_the_text_tells_and_no_more(view: Any) -> None:
    env, rng = MiniGrid("MiniGrid-DoorKey-6x6-v0", view=view), random.Random(0)
    texts: dict[bytes, set[str]] = {}
    for seed in range(10):
        env.reset(seed=seed)
        for _ in range(20):
            texts.setdefault(env.features().tobytes(), set()).add(env.render_text())
            env.step(rng.choice(env.actions[:-1]))
    assert len(texts) > 50
    assert {len(seen) for seen in texts.values()} == {1}
    assert len(set.union(*texts.values())) == len(texts)


def test_levels_whose_mission_differs_have_no_features() -> None:
    assert MiniGrid("MiniGrid-LavaGapS5-v0").has_features
    for level in ("MiniGrid-Fetch-5x5-N2-v0", "BabyAI-GoToLocal-v0"):
        env = MiniGrid(level)
        assert not env.has_features
        with pytest.raises(ValueError, match=f"{level} has missions that differ"):
            env.features()


@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "BabyAI-PickupLoc-v0"])
def test_the_bot_succeeds_in_turns_of_several_actions(level: str) -> None:
    env = MiniGrid(level, max_actions=40)
    for seed in range(6):
        env.reset(seed=seed)
        ended = False
        while not ended:
            for action in env.expert_turn(random.Random(0), 3)[1]:
                _, reward, terminated, truncated, info = env.step(action)
                ended = terminated or truncated
        assert info["success"]
        assert 0.1 < reward <= 1.0


def test_the_bot_finds_its_way_after_actions_of_others() -> None:
    env, rng = MiniGrid("BabyAI-GoToRedBallGrey-v0", max_actions=60), random.Random(0)
    successes = 0
    for seed in range(6):
        env.reset(seed=seed)
        ended = False
        while not ended:
            astray = rng.random() < 0.3
            action = (
                rng.choice(env.actions[:3])
                if astray
                else env.expert_turn(random.Random(0), 1)[1][0]
            )
            _, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
        successes += info["success"]
    assert successes >= 5


def test_noise_moves_the_obstacles() -> None:
    env = MiniGrid("MiniGrid-Dynamic-Obstacles-6x6-v0", view="grid", split="all")
    after = set()
    for noise_seed in range(8):
        env.reset(seed=2, options={"noise_seed": noise_seed})
        after.add(env.step("left")[0])
    assert len(after) > 1


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    env = MiniGrid("BabyAI-GoToLocal-v0")
    for seed in range(30):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""


def test_nothing_is_printed_in_a_worker_process(capfd: pytest.CaptureFixture[str]) -> None:
    """A worker's environment was unpickled and not made there."""
    host = EnvHost(1, 120.0)
    try:
        env = host.wrap(MiniGrid("BabyAI-PickupLoc-v0"))
        for seed in range(30):
            env.reset(seed=seed)
    finally:
        host.close()
    assert "Sampling rejected" not in capfd.readouterr().out


def test_a_state_has_a_picture() -> None:
    env = MiniGrid("BabyAI-GoToLocal-v0")
    env.reset(seed=0)
    env.step("left")
    picture = env.render()
    assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)


def test_levels_of_minigrid_have_no_bot() -> None:
    env = MiniGrid("MiniGrid-DoorKey-5x5-v0")
    assert not env.has_expert
    assert MiniGrid("BabyAI-GoToLocal-v0").has_expert
    with pytest.raises(ValueError, match="DoorKey-5x5-v0 has no expert, only levels of BabyAI"):
        env.expert_turn(random.Random(0), 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"level": "BabyAI-GoToLoca-v0"}, "did you mean 'BabyAI-GoToLocal-v0'"),
        ({"view": "picture"}, "view: 'picture'"),
        ({"max_actions": 0}, "max_actions: 0"),
        ({"split": "test"}, "split: 'test'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MiniGrid(**arguments)


def test_a_level_that_needs_more_packages_is_a_short_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise gymnasium.error.DependencyNotInstalled("imageio is missing")

    told = r"level: 'MiniGrid-Empty-5x5-v0' needs .*imageio"
    with monkeypatch.context() as patch:
        patch.setattr(gymnasium, "make", missing)
        with pytest.raises(ConfigError, match=told):
            MiniGrid("MiniGrid-Empty-5x5-v0")
    level = gymnasium.make("MiniGrid-Empty-5x5-v0").unwrapped
    monkeypatch.setattr(type(level), "reset", missing)  # as levels of wave function collapse do
    with pytest.raises(ConfigError, match=told):
        MiniGrid("MiniGrid-Empty-5x5-v0")


def test_an_unknown_action_is_named() -> None:
    env = MiniGrid("BabyAI-GoToLocal-v0")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: 'jump' is none of left, right"):
        env.step("jump")
    assert env.get_state()["moves"] == []
