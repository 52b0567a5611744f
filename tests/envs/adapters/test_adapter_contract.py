"""Every adapter keeps the contract, on several games each, as the shipped environments do."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ragen_pl.envs.adapters import (
    MCTS,
    GymText,
    MiniGrid,
    Minimax,
    MonteCarlo,
    OpenSpiel,
    RandomPlay,
    ReasoningGym,
)
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.eval_seeds import overlap
from tests.support.held_out import eval_seeds
from tests.support.other_hashes import computed_elsewhere

for package in ("pyspiel", "reasoning_gym", "minigrid"):
    pytest.importorskip(package, reason="needs the extra envs: pip install -e '.[envs]'")

Make = Callable[[], TextEnv]
GAMES: dict[str, Make] = {
    "tic_tac_toe": lambda: OpenSpiel("tic_tac_toe", opening=2, expert=Minimax()),
    "tic_tac_toe-minimax": lambda: OpenSpiel(
        "tic_tac_toe", opening=2, opponent=Minimax(), success_return=-0.5
    ),
    "connect_four": lambda: OpenSpiel(
        "connect_four", opponent=MonteCarlo(2, 4), opening=2, max_actions=4
    ),
    "2048": lambda: OpenSpiel(
        "2048(max_tile=64)", expert=MonteCarlo(2, 4), success_pattern=r"\b64\b", max_actions=20
    ),
    "blackjack": lambda: OpenSpiel("blackjack", max_actions=8),
    "leduc_poker": lambda: OpenSpiel(
        "leduc_poker", opponent=MCTS(20), view="information_state", max_actions=8
    ),
    "tic_tac_toe-mcts": lambda: OpenSpiel("tic_tac_toe", opponent=MCTS(20), opening=2),
    "kuhn_poker": lambda: OpenSpiel("kuhn_poker", split="all"),
    "hex": lambda: OpenSpiel("hex(board_size=3)", opening=1),
    "othello": lambda: OpenSpiel("othello", opening=2, expert=RandomPlay(), max_actions=3),
    "countdown": lambda: ReasoningGym("countdown", tries=3, difficulty="numbers"),
    "mini_sudoku": lambda: ReasoningGym("mini_sudoku", {"max_empty": 9}, tries=2),
    "gsm_symbolic": lambda: ReasoningGym("gsm_symbolic", repeat_question=False, tries=2),
    "rubiks_cube": lambda: ReasoningGym("rubiks_cube", {"cube_size": 3}),
    "pool_matrix": lambda: ReasoningGym("pool_matrix"),
    "go_to": lambda: MiniGrid("BabyAI-GoToLocal-v0", max_actions=8),
    "pick_up-grid": lambda: MiniGrid("BabyAI-PickupLoc-v0", view="grid", max_actions=8),
    "door_key": lambda: MiniGrid("MiniGrid-DoorKey-5x5-v0", view="grid", max_actions=8),
    "obstacles": lambda: MiniGrid("MiniGrid-Dynamic-Obstacles-5x5-v0", split="all"),
    "gym-blackjack": lambda: GymText("Blackjack-v1", "Play.", actions=("stick", "hit")),
    "gym-words": lambda: GymText(f"{__name__}.Doors", "Go.", split="all", max_actions=3),
}
WITH_EXPERT = [name for name in GAMES if name not in ("door_key", "obstacles")]
SEEDS = (0, 5, 13, (1 << 32) + 7)


class Doors:
    """Open the one of three doors that the seed chose; text in, text out, none of gymnasium's."""

    def reset(self, seed: int) -> tuple[str, dict[str, str]]:
        self.door = ("red", "green", "blue")[seed % 3]
        return f"Behind one is {self.door}.", {"difficulty": self.door}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, bool]]:
        opened = action == self.door
        return ("in" if opened else "shut"), float(opened), opened, False, {}


@pytest.fixture(params=GAMES, name="env")
def _env(request: pytest.FixtureRequest) -> TextEnv:
    return GAMES[request.param]()


def choose(env: TextEnv, rng: random.Random) -> str:
    return rng.choice(env.actions or ("1", "blue", "a\nb", ""))


def play(env: TextEnv, seed: int, noise_seed: int) -> list[list[object]]:
    """Play at random with fixed choices; all observations, rewards and ends."""
    text, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
    rng, has_ended = random.Random(0), False
    steps: list[list[object]] = [[text, str(info)]]
    while not has_ended:
        text, reward, terminated, truncated, info = env.step(choose(env, rng))
        has_ended = terminated or truncated
        steps.append([text, reward, terminated, truncated, info["success"]])
    assert len(steps) - 1 <= env.max_actions
    return steps


def test_the_checker_finds_nothing(env: TextEnv) -> None:
    check_contract(env, "env")


@pytest.mark.filterwarnings("ignore:.*render")
def test_gymnasium_s_checker_finds_nothing(env: TextEnv) -> None:
    check_env(env, skip_render_check=True)


def test_seeds_decide_everything_and_leave_global_random_state_alone(env: TextEnv) -> None:
    before = (random.getstate(), str(np.random.get_state()))
    for seed in SEEDS:
        assert play(env, seed, 7) == play(copy.deepcopy(env), seed, 7)
    assert (random.getstate(), str(np.random.get_state())) == before


def played() -> dict[str, Any]:
    """Play some episodes of each."""
    return {name: play(make(), 5, 1) for name, make in GAMES.items()}


def test_another_process_with_other_hashes_plays_the_same() -> None:
    assert computed_elsewhere(__file__, "played") == json.loads(json.dumps(played()))


def test_members_of_a_group_start_alike(env: TextEnv) -> None:
    starts = set()
    for noise_seed in range(4):
        text, info = env.reset(seed=9, options={"noise_seed": noise_seed})
        starts.add((text, env.state_hash(), env.instruction, env.actions, str(info)))
    assert len(starts) == 1


def test_a_pickled_copy_goes_on_alike(env: TextEnv) -> None:
    env.reset(seed=5, options={"noise_seed": 1})
    twin, action = pickle.loads(pickle.dumps(env)), choose(env, random.Random(0))
    assert twin.step(action) == env.step(action)
    assert twin.state_hash() == env.state_hash()


def test_a_restored_state_goes_on_and_ends_alike(env: TextEnv) -> None:
    for seed in SEEDS:
        env.reset(seed=seed, options={"noise_seed": 3})
        env.step(choose(env, random.Random(seed)))
        other = copy.deepcopy(env)
        other.reset(seed=1, options={"noise_seed": 8})
        other.set_state(json.loads(json.dumps(env.get_state())))
        assert other.render_text() == env.render_text()
        assert other.anchor_key() == env.anchor_key()
        assert other.get_state() == env.get_state()


UNDIVIDED = ("kuhn_poker", "obstacles", "gym-words")
"""Games of too few starts to divide, which are played with ``split: all``."""


@pytest.mark.parametrize("name", [name for name in GAMES if name not in UNDIVIDED])
def test_evaluation_starts_are_none_of_training_s(name: str) -> None:
    env = GAMES[name]()
    held_out = copy.deepcopy(env)
    held_out.split = "eval"  # type: ignore[attr-defined]
    seeds = eval_seeds(held_out, 12)
    found = overlap(held_out, seeds, env, range(40))
    assert found.shared == 0
    assert found.starts > 3


@pytest.mark.parametrize("name", WITH_EXPERT)
def test_experts_answer_what_can_be_done(name: str) -> None:
    env = GAMES[name]()
    if not env.has_expert:
        with pytest.raises(ValueError, match="has no expert_turn"):
            env.expert_turn(random.Random(0), 1)
        return
    for seed in SEEDS[:2]:
        env.reset(seed=seed, options={"noise_seed": 1})
        before = env.get_state(), env.render_text()
        thought, actions = env.expert_turn(random.Random(0), 2)
        assert (env.get_state(), env.render_text()) == before
        assert thought == ""
        assert 1 <= len(actions) <= 2
        assert env.actions is None or set(actions) <= set(env.actions)
        for action in actions:
            _, reward, *_, info = env.step(action)
            assert info.get("is_legal", True)
            assert float(reward) >= 0.0 or isinstance(env, OpenSpiel)


def test_vocabularies_are_the_same_every_time_and_cover_the_observations(env: TextEnv) -> None:
    pieces = list(env.vocabulary())
    assert pieces == list(copy.deepcopy(env).vocabulary())
    assert all(pieces)
    assert len(pieces) < 800
    text, _ = env.reset(seed=3)
    seen = f"{env.instruction}\n{text}"
    assert any(piece.strip() and piece in seen for piece in pieces)
