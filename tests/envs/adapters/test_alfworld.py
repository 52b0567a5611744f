"""Household tasks: made from a seed, played by TextWorld, solved by its planner."""

from __future__ import annotations

import copy
import json
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragen_pl.envs.adapters import AlfWorld
from ragen_pl.envs.adapters.household import TASKS, generate
from ragen_pl.envs.contract import check_contract

pytest.importorskip("alfworld", reason="needs the extra alfworld: pip install -e '.[alfworld]'")
pytestmark = pytest.mark.run  # seconds for each household


def solved(env: AlfWorld, seed: int) -> tuple[list[str], bool]:
    """Let the expert play; the texts, and whether it was a success."""
    text, _ = env.reset(seed=seed)
    texts, done, success = [env.instruction, text], False, False
    while not done:
        for action in env.expert_turn(random.Random(0), 3)[1]:
            text, reward, terminated, truncated, info = env.step(action)
            texts.append(text)
            done, success = terminated or truncated, info["success"]
            assert reward == (10.0 if success else 0.0)
            if done:
                break
    return texts, success


@pytest.mark.parametrize("task", TASKS)
def test_the_planner_does_every_task(task: str) -> None:
    env = AlfWorld(tasks=(task,), clutter=4)
    texts, success = solved(env, 1)
    assert success
    assert env.reset(seed=1)[1] == {"difficulty": task}
    assert texts[0].splitlines()[-1].startswith("Task: ")
    assert f"Your task is to: {texts[0].rpartition('Task: ')[2]}." in texts[1]


def test_threads_and_other_copies_play_the_same() -> None:
    env, arguments = AlfWorld(clutter=4), list(sys.argv)
    with ThreadPoolExecutor(3) as threads:
        first = list(threads.map(lambda seed: solved(copy.deepcopy(env), seed), (3, 4, 3)))
    assert first[0] == first[2] != first[1]
    assert sys.argv == arguments


def test_the_contract_holds() -> None:
    check_contract(AlfWorld(clutter=2), "env")


def test_a_pickled_copy_goes_on_and_the_expert_replans_after_a_detour() -> None:
    env = AlfWorld(clutter=4)
    env.reset(seed=5)
    plan = env.expert_turn(random.Random(0), 9)[1]
    env.step(plan[0])
    twin = pickle.loads(pickle.dumps(env))
    assert twin.step("look") == env.step("look")
    assert twin.expert_turn(random.Random(0), 9) == env.expert_turn(random.Random(0), 9)
    env.step(next(c for c in env._seen.admissible if c.startswith("go to")))
    assert env.expert_turn(random.Random(0), 9)[1]


def test_what_is_not_admissible_changes_nothing() -> None:
    env = AlfWorld(clutter=2)
    text, _ = env.reset(seed=5)
    listed = text.partition("Admissible: ")[2]
    for command in ("fly", "", "go to fridge 9", "\x00", "help"):
        assert env.step(command)[:2] == (f"Nothing happens.\nAdmissible: {listed}", 0.0)
    assert "You arrive" in env.step("  GO TO\nfridge 1 ")[0]


def test_splits_share_no_household() -> None:
    keys: dict[str, set[str]] = {}
    for split in ("train", "eval"):
        env = AlfWorld(clutter=2, split=split)  # type: ignore[arg-type]
        keys[split] = set()
        for seed in range(40):
            env._choose(seed)
        for seed in range(3):
            env.reset(seed=seed)
            assert env._game is not None
            keys[split].add(env._game.key)
    assert not keys["train"] & keys["eval"]


def test_households_follow_from_the_seed_and_their_brackets_match() -> None:
    for seed in range(40):
        game = generate(seed, TASKS, 5)
        assert game == generate(seed, TASKS, 5)
        problem = game.data["pddl_problem"]
        assert problem.count("(") == problem.count(")")
        assert game.task in TASKS


def test_games_by_path_are_alfred_s_files(tmp_path: Path) -> None:
    game = generate(7, ("pick_and_place_simple",), 3)
    folder = tmp_path / "my-data" / "pick_and_place_simple-Mug-None-Desk-308" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(game.data))
    env = AlfWorld(str(tmp_path), split="all")
    texts, success = solved(env, 0)
    assert success
    assert game.goal in texts[1]
    assert env.instruction.endswith(f"Task: {game.goal}")
    assert env.reset(seed=3)[1] == {"difficulty": "pick_and_place_simple"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold texts named pddl_domain"),
        (
            json.dumps({"pddl_domain": "", "pddl_problem": "", "grammar": "", "solvable": False}),
            "cannot be solved: remove it",
        ),
    ],
)
def test_files_that_are_no_games_are_told(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "game.tw-pddl"
    file.write_text(content)
    with pytest.raises(ValueError, match=told):
        AlfWorld(str(file), split="all").reset(seed=0)


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"games: there is no \*\.tw-pddl in .*alfworld-download"):
        AlfWorld(str(tmp_path))
    with pytest.raises(ValueError, match=r"tasks: .*fly.* must be some of pick_and_place_simple"):
        AlfWorld(tasks=("fly",))
    with pytest.raises(ValueError, match="clutter: -1"):
        AlfWorld(clutter=-1)
    with pytest.raises(ValueError, match="max_actions: 0"):
        AlfWorld(max_actions=0)
