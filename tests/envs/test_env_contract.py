"""The contract of an environment, for every variant of the shipped ones."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen_pl.envs.bandit import Bandit
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.frozen_lake.env import SYMBOLS, FrozenLake
from ragen_pl.envs.picture import CELL
from ragen_pl.envs.rubik.cube import SOLVED, turn
from ragen_pl.envs.rubik.env import Rubik
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sudoku.env import Sudoku

VARIANTS: dict[str, Callable[[], TextEnv]] = {
    "sokoban": Sokoban,
    "sokoban-eval": lambda: Sokoban(split="eval"),
    "sokoban-tuning": lambda: Sokoban(split="tuning"),
    "sokoban-reference": lambda: Sokoban(split="reference"),
    "sokoban-letters": lambda: Sokoban(symbols="letters"),
    "sokoban-coordinates": lambda: Sokoban(observation="coordinates"),
    "sokoban-both": lambda: Sokoban(observation="grid_coordinates", symbols="letters"),
    "sokoban-spaced": lambda: Sokoban(spaced=True, symbols="letters"),
    "sokoban-large": lambda: Sokoban(size=8, num_boxes=2),
    "sokoban-large-reference": lambda: Sokoban(size=8, num_boxes=2, split="reference"),
    "bandit": Bandit,
    "bandit-reversed": lambda: Bandit(reversed_risk=True),
    "bandit-named": lambda: Bandit("named"),
    "bandit-named-eval": lambda: Bandit("named", split="eval"),
    "bandit-trader": lambda: Bandit("teacher_engineer", split="eval"),
    "lake": FrozenLake,
    "lake-paper": lambda: FrozenLake(intended=1 / 3),
    "lake-dry": lambda: FrozenLake(intended=1.0),
    "lake-spaced": lambda: FrozenLake(spaced=True),
    "lake-large-eval": lambda: FrozenLake(size=6, split="eval"),
    "rubik": Rubik,
    "rubik-far-eval": lambda: Rubik(4, 9, split="eval", thought="facts_and_plan"),
    "rubik-turns": lambda: Rubik(1, 8, scramble="turns"),
    "sudoku": Sudoku,
    "sudoku-grid-eval": lambda: Sudoku(observation="grid", split="eval"),
    "sudoku-plan": lambda: Sudoku(thought="plan"),
    "sudoku-nine": lambda: Sudoku(9, 30, 40, max_actions=60, observation="grid"),
    "sudoku-nine-any": lambda: Sudoku(9, 2, 9, reasoning="any"),
}
SEEDS = (0, 5, 13, 19)
_HASHES = """
import json, sys
from test_env_contract import SEEDS, VARIANTS, start_hash
print(json.dumps({name: [start_hash(make(), s) for s in SEEDS] for name, make in VARIANTS.items()}))
assert not {"torch", "transformers"} & set(sys.modules), "envs must stay light"
"""


@pytest.fixture(params=VARIANTS, name="env")
def _env(request: pytest.FixtureRequest) -> TextEnv:
    return VARIANTS[request.param]()


def start_hash(env: TextEnv, seed: int, noise_seed: int = 0) -> str:
    env.reset(seed=seed, options={"noise_seed": noise_seed})
    return env.state_hash()


def play(env: TextEnv, seed: int, noise_seed: int) -> list[tuple[str, float, bool, bool]]:
    """Play at random with fixed choices."""
    observation, _ = env.reset(seed=seed, options={"noise_seed": noise_seed})
    rng, steps = random.Random(0), [(observation, 0.0, False, False)]
    while not (steps[-1][2] or steps[-1][3]):
        assert env.actions is not None
        observation, reward, terminated, truncated, info = env.step(rng.choice(env.actions))
        assert type(info["success"]) is bool
        assert terminated or not info["success"]
        assert len(observation) < 400
        steps.append((observation, float(reward), terminated, truncated))
    assert len(steps) - 1 <= env.max_actions
    return steps


def test_a_seed_decides_everything(env: TextEnv) -> None:
    for seed in SEEDS:
        assert play(env, seed, 7) == play(env, seed, 7)


def test_members_of_a_group_start_alike(env: TextEnv) -> None:
    for seed in SEEDS:
        starts = set()
        for noise_seed in range(4):
            observation, info = env.reset(seed=seed, options={"noise_seed": noise_seed})
            starts.add((observation, env.state_hash(), env.instruction, env.actions, str(info)))
        assert len(starts) == 1


def test_the_difficulty_of_a_seed_is_that_of_its_reset(env: TextEnv) -> None:
    env.reset(seed=1)
    before = env.get_state()
    for seed in range(100, 120):
        _, info = copy.deepcopy(env).reset(seed=seed, options={"noise_seed": 3})
        assert env.difficulty_of(seed) == info["difficulty"]
    assert env.get_state() == before


def test_a_seed_means_the_same_in_another_process() -> None:
    here = {name: [start_hash(make(), s) for s in SEEDS] for name, make in VARIANTS.items()}
    folder = Path(__file__).parent
    paths = os.pathsep.join((str(folder), str(folder.parents[1])))
    done = subprocess.run(
        [sys.executable, "-c", _HASHES],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == here


def test_global_random_state_is_left_alone(env: TextEnv) -> None:
    before = (random.getstate(), str(np.random.get_state()))
    play(env, 3, 3)
    assert (random.getstate(), str(np.random.get_state())) == before


def test_reset_without_a_seed_draws_one(env: TextEnv) -> None:
    observation, _ = env.reset()
    assert observation


def test_state_is_plain_data_and_restores(env: TextEnv) -> None:
    env.reset(seed=5, options={"noise_seed": 1})
    start, start_text = env.get_state(), env.render_text()
    assert json.loads(json.dumps(start)) == start
    assert env.actions is not None
    env.step(env.actions[0])
    middle, middle_text = env.get_state(), env.render_text()
    for state, text in ((start, start_text), (middle, middle_text)):
        env.set_state(json.loads(json.dumps(state)))
        assert env.get_state() == state
        assert env.render_text() == text


@pytest.mark.parametrize("by_expert", [True, False])
def test_after_the_end_a_step_is_refused(env: TextEnv, by_expert: bool) -> None:
    """Whether the end was reached by steps or by ``set_state``."""
    other, rng = copy.deepcopy(env), random.Random(0)
    for seed in SEEDS:
        env.reset(seed=seed, options={"noise_seed": seed})
        ended = False
        while not ended:
            assert env.actions is not None
            action = env.expert_turn(rng, 1)[1][0] if by_expert else rng.choice(env.actions)
            _, _, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
        other.reset(seed=0)
        other.set_state(env.get_state())
        for each in (env, other):
            before = each.get_state()
            with pytest.raises(RuntimeError, match="the episode has ended; call reset first"):
                each.step(action)
            assert each.get_state() == before


def test_an_anchor_is_the_state_without_its_counter(env: TextEnv) -> None:
    env.reset(seed=5)
    state, anchor = env.get_state(), env.anchor_key()
    if "num_actions" in state:
        whole = env.state_hash()
        env.set_state({**state, "num_actions": 3})
        assert (env.state_hash() != whole, env.anchor_key()) == (True, anchor)
    moved: dict[str, Any] = {"choice": "Dragon"}
    if "player" in state:
        moved = {"player": state["player"] + 1}
    elif "stickers" in state:
        moved = {"stickers": turn(SOLVED, "R")}
    elif "board" in state:
        moved = {"board": state["givens"][::-1]}
    env.set_state({**state, **moved})
    assert env.anchor_key() != anchor


def test_pickled_copy_goes_on_alike(env: TextEnv) -> None:
    env.reset(seed=5, options={"noise_seed": 1})
    twin = pickle.loads(pickle.dumps(env))
    assert env.actions is not None
    assert twin.step(env.actions[0]) == env.step(env.actions[0])
    assert twin.state_hash() == env.state_hash()


def test_expert_keeps_to_the_limits_and_does_not_lie(env: TextEnv) -> None:
    rng = random.Random(0)
    for seed in SEEDS:
        env.reset(seed=seed)
        for limit in (1, 2, 5):
            thought, actions = env.expert_turn(rng, limit)
            assert 1 <= len(actions) <= limit
            assert env.actions is not None
            assert set(actions) <= set(env.actions)
            assert thought == " ".join(thought.split())
            assert env.thought_correct(thought) in (True, None)


def test_picture_is_rgb(env: TextEnv) -> None:
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    assert picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 3


def changed_cells(before: dict[str, Any], after: dict[str, Any], env: TextEnv) -> set[int]:
    """Return the cells of a square board whose pictures differ."""
    size = before["size"]
    drawings = env.draw(before), env.draw(after)
    one, other = (drawing.picture() for drawing in drawings if drawing is not None)
    assert one.shape == other.shape == (size * CELL, size * CELL, 3)
    rows, columns = np.nonzero((one != other).any(axis=2))
    return {int(r // CELL * size + c // CELL) for r, c in zip(rows, columns, strict=True)}


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_a_picture_shows_every_part_of_the_state_in_its_cell(kind: type[TextEnv]) -> None:
    env = kind()
    env.reset(seed=4)
    state = env.get_state()
    taken = {state["player"], state.get("goal"), *state.get("walls", ())}
    free = [cell for cell in range(state["size"] ** 2) if cell not in taken]
    assert not changed_cells(state, {**state, "num_actions": 7}, env)
    for key in state.keys() - {"size", "num_actions"}:
        value = state[key]
        cell = next(c for c in free if not isinstance(value, list) or c not in value)
        if isinstance(value, list):  # one more
            assert changed_cells(state, {**state, key: [*value, cell]}, env) == {cell}
        else:
            assert changed_cells(state, {**state, key: cell}, env) == {value, cell}


def test_a_picture_tells_apart_what_stands_on_what() -> None:
    room = {"size": 6, "walls": [], "targets": [8], "player": 20, "num_actions": 0}
    on, off = {**room, "boxes": [8]}, {**room, "boxes": [9]}
    lake = {"size": 4, "holes": [5], "goal": 3, "player": 0, "num_actions": 0}
    assert changed_cells(on, off, Sokoban()) == {8, 9}
    assert changed_cells({**on, "targets": []}, on, Sokoban()) == {8}
    assert changed_cells({**lake, "player": 5}, {**lake, "player": 5, "holes": []}, FrozenLake())
    arms = {"arms": ["Phoenix", "Dragon"], "low": "Phoenix", "choice": None, "reward": 0.0}
    paid = [{**arms, "choice": "Dragon", "reward": reward} for reward in (0.0, 0.15, 1.0)]
    assert len({Bandit().draw(state).picture().tobytes() for state in (arms, *paid)}) == 4


def test_action_names_hold_no_separator(env: TextEnv) -> None:
    env.reset(seed=0)
    assert env.actions
    assert all("||" not in name and name == name.strip() for name in env.actions)
    with pytest.raises(ValueError, match="Jump"):
        env.step("Jump")


def test_the_vocabulary_covers_instruction_observation_and_thought(env: TextEnv) -> None:
    """Everything but digits and the odd separator is made of pieces."""
    pieces = sorted(set(env.vocabulary()), key=len, reverse=True)
    assert all(pieces)
    assert len(pieces) < 1500
    for seed in SEEDS:
        observation, _ = env.reset(seed=seed)
        thought, _ = env.expert_turn(random.Random(0), 3)
        for text in (observation, thought, env.instruction):
            count, place = 0, 0
            while place < len(text):
                piece = next((p for p in pieces if text.startswith(p, place)), text[place])
                place += len(piece)
                count += 1
            assert count <= max(45, len(text) // 2)


def test_legend_names_the_live_symbols() -> None:
    for symbols in ("paper", "letters"):
        env = Sokoban(symbols=symbols)
        for mark in env.symbols:
            assert f"{mark} " in env.instruction
        for seed in range(40):
            observation, _ = env.reset(seed=seed)
            assert set(observation) <= {*env.symbols, "\n"}
    other = {*"WGCB.A@"}
    legend = Sokoban(symbols="paper").instruction.split("Symbols: ")[1]
    assert not {part.split()[0] for part in legend.split(", ")} & other
    lake = FrozenLake()
    assert all(f"{mark} {meaning}" in lake.instruction for meaning, mark in SYMBOLS.items())


@given(text=st.text(max_size=40))
def test_any_thought_can_be_judged(text: str) -> None:
    for env in (Sokoban(), FrozenLake(), Bandit(), Rubik(), Sudoku()):
        env.reset(seed=0)
        if not (isinstance(env, Rubik) and {*text.split(" ")} <= {*env.actions}):  # may be right
            assert env.thought_correct(text) in (False, None)
        thought, _ = env.expert_turn(random.Random(0), 3)
        if text:
            assert env.thought_correct(thought + text) in (False, None)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        (Sokoban, {"size": 0}, "size: 0"),
        (Sokoban, {"num_boxes": 0}, "num_boxes: 0"),
        (Sokoban, {"max_actions": -1}, "max_actions: -1"),
        (Sokoban, {"symbols": "leters"}, "did you mean 'letters'"),
        (Sokoban, {"observation": "coordinate"}, "did you mean 'coordinates'"),
        (Sokoban, {"split": "evla"}, "did you mean 'eval'"),
        (Bandit, {"pair": "phenix_dragon"}, "did you mean 'phoenix_dragon'"),
        (Bandit, {"split": "test"}, "split: 'test'"),
        (FrozenLake, {"size": -4}, "size: -4"),
        (FrozenLake, {"intended": 1.5}, "intended: 1.5"),
        (FrozenLake, {"frozen_probability": 0.0}, r"frozen_probability: 0\.0"),
        (FrozenLake, {"max_actions": 0}, "max_actions: 0"),
        (Rubik, {"shortest": 0}, "shortest: 0"),
        (Rubik, {"shortest": 6}, "longest, which is 5"),
        (Rubik, {"longest": 13}, "longest: 13"),
        (Rubik, {"max_actions": 4}, "max_actions: 4"),
        (Rubik, {"scramble": "turn"}, "did you mean 'turns'"),
        (Rubik, {"thought": "facts"}, "thought: 'facts'"),
        (Sudoku, {"size": 6}, "size: 6 is neither of 4, 9"),
        (Sudoku, {"fewest_empty": 0}, "fewest_empty: 0"),
        (Sudoku, {"most_empty": 13}, "most_empty: 13"),
        (Sudoku, {"max_actions": 9}, "max_actions: 9"),
        (Sudoku, {"reasoning": "any"}, "no puzzle of size 4"),
        (Sudoku, {"observation": "gird"}, "did you mean 'grid'"),
    ],
)
def test_bad_arguments_are_named(
    kind: Callable[..., TextEnv], arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**arguments)


@pytest.mark.parametrize("kind", [Sokoban, FrozenLake])
def test_a_spaced_row_is_the_row_with_a_space_between_cells(
    kind: type[Sokoban] | type[FrozenLake],
) -> None:
    """Nothing else differs, and each cell is a piece: columns line up in tokens, too."""
    joined, spaced = kind(), kind(spaced=True)
    pieces = set(spaced.vocabulary())
    for seed in SEEDS:
        lines = joined.reset(seed=seed)[0].split("\n")
        apart = spaced.reset(seed=seed)[0].split("\n")
        assert apart == [" ".join(line) for line in lines]
        assert joined.start_key() == spaced.start_key()
        assert {line[0] for line in apart} <= pieces
        assert {f" {cell}" for line in lines for cell in line[1:]} <= pieces
