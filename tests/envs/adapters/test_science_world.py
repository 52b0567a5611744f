"""Science tasks: the simulator's own solutions earn everything, the same in every machine."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragen_pl.envs.adapters import ScienceWorld
from ragen_pl.envs.contract import check_contract
from ragen_pl.errors import ConfigError
from tests.support.extras import need

need("scienceworld", "scienceworld")
pytestmark = pytest.mark.run  # a virtual machine, and a second for each start
TASKS = ("find-living-thing", "boil", "use-thermometer", "chemistry-mix")


def solved(env: ScienceWorld, seed: int) -> tuple[list[str], float, bool]:
    """Let the expert play; the texts, the return, and whether it was a success."""
    text, _ = env.reset(seed=seed)
    texts, total, done, success = [env.instruction, text], 0.0, False, False
    while not done:
        (action,) = env.expert_turn(random.Random(0), 1)[1]
        text, reward, terminated, truncated, info = env.step(action)
        texts.append(text)
        total, done, success = total + reward, terminated or truncated, info["success"]
    return texts, total, success


@pytest.mark.parametrize("task", TASKS)
def test_the_solution_earns_everything(task: str) -> None:
    env = ScienceWorld((task,), max_actions=80)
    _, total, success = solved(env, 2)
    assert success
    assert env._start is not None
    assert total == pytest.approx(1.0 - env._start.score / 100)


def test_threads_and_another_machine_play_the_same() -> None:
    env = ScienceWorld(TASKS, max_actions=80)
    with ThreadPoolExecutor(3) as threads:
        here = list(threads.map(lambda seed: solved(copy.deepcopy(env), seed), (1, 2)))
    program = (
        "import json; from test_science_world import ScienceWorld, TASKS, solved; "
        "env = ScienceWorld(TASKS, max_actions=80); "
        "print(json.dumps([solved(env, seed) for seed in (2, 1)]))"
    )
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder.parents[2]}"},
        capture_output=True,
        text=True,
        check=True,
    )
    there = json.loads(done.stdout.splitlines()[-1])
    assert there[::-1] == json.loads(json.dumps(here))


def test_the_contract_holds() -> None:
    check_contract(ScienceWorld(), "env")


def test_a_pickled_copy_goes_on() -> None:
    env = ScienceWorld()
    env.reset(seed=3)
    env.step("open door to hallway")
    twin = pickle.loads(pickle.dumps(env))
    assert twin.step("go to hallway") == env.step("go to hallway")
    assert twin.get_state() == env.get_state()


def test_any_text_is_answered() -> None:
    env = ScienceWorld()
    env.reset(seed=3)
    for command in ("fly", "", "\ud800", "\x00", "√ß漢字", "9" * 5000, "Reset  Task"):
        text, reward, terminated, _, _ = env.step(command)
        assert (text, reward, terminated) == ("No known action matches that input.", 0.0, False)


def test_a_wrong_focus_ends_the_episode() -> None:
    env = ScienceWorld()
    env.reset(seed=3)
    *_, reward, terminated, truncated, info = env.step("focus on air")
    assert (terminated, truncated, info["success"]) == (True, False, False)
    assert -1.2 < reward <= -1.0


def test_splits_are_scienceworld_s() -> None:
    starts: dict[str, set[int]] = {}
    for split in ("train", "eval"):
        env = ScienceWorld(split=split)  # type: ignore[arg-type]
        starts[split] = set()
        for seed in range(6):
            env.reset(seed=seed)
            assert env._start is not None
            starts[split].add(env._start.variation)
    assert not starts["train"] & starts["eval"]


def test_bad_arguments_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="tasks: 'boyl' is unknown; did you mean 'boil'"):
        ScienceWorld(("boyl",))
    with pytest.raises(ValueError, match="simplifications: 'eazy' is unknown; known are easy"):
        ScienceWorld(simplifications="eazy").reset(seed=0)
    with pytest.raises(ValueError, match="max_actions: 0"):
        ScienceWorld(max_actions=0)
    monkeypatch.setattr("ragen_pl.envs.adapters.science_world._Machine._shared", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match="needs Java, which is not installed: install"):
        ScienceWorld().reset(seed=0)


def test_nothing_is_written_where_the_run_was_started(
    tmp_path: Path,
) -> None:
    """In a process of its own, as there is one machine for each."""
    program = "from ragen_pl.envs.adapters import ScienceWorld; ScienceWorld().reset(seed=0)"
    path = os.pathsep.join(each for each in sys.path if each)
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        timeout=120,
    )
    assert list(tmp_path.iterdir()) == []
