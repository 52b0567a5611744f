"""Environments in processes of their own: the same trajectories, and an end for those that hang."""

from __future__ import annotations

import copy
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.boundary import RemoteError
from ragen_pl.envs.sokoban.env import Sokoban
from ragen_pl.envs.sudoku.env import Sudoku
from ragen_pl.envs.workers import EnvHost
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.runtime.faults import Fault, FaultKind, add_receiver, remove_receiver
from ragen_pl.types import StopReason
from tests.runs.test_faulty_environments import CONFIG, FAULTS, play
from tests.support.faulty import FaultyLamp, Rebellious, Unbuildable
from tests.support.lamps import NamedLamp

WORKERS = replace(CONFIG, env_workers=2, step_timeout_s=1.0)


@pytest.fixture(scope="module")
def host() -> Iterator[EnvHost]:
    host = EnvHost(2, 1.0)
    yield host
    host.close()


@pytest.fixture
def patient_host() -> Iterator[EnvHost]:
    """Workers with time enough on a machine that is busy with other tests."""
    host = EnvHost(2, 60.0)
    yield host
    host.close()


@pytest.fixture
def faults() -> Iterator[list[Fault]]:
    received: list[Fault] = []
    add_receiver(received.append)
    yield received
    remove_receiver(received.append)


def test_trajectories_are_the_same_as_in_process(patient_host: EnvHost) -> None:
    config = replace(WORKERS, step_timeout_s=60.0)
    assert play(patient_host.wrap(NamedLamp()), config) == play(NamedLamp())
    for method, instead, when in FAULTS:
        env = FaultyLamp(method, instead, when)
        assert play(patient_host.wrap(env), config) == play(env), method


def test_every_method_is_the_environments(host: EnvHost) -> None:
    near, far = Sokoban(), host.wrap(Sokoban())
    draws = random.Random(1), random.Random(1)
    for env in (near, far):
        env.reset(seed=3, options={"noise_seed": 1})
    assert far.expert_turn(draws[1], 3) == near.expert_turn(draws[0], 3)
    assert draws[0].getstate() == draws[1].getstate(), "the expert used the caller's randomness"
    state = near.get_state()
    for one, other in zip(near.symmetries(), far.symmetries(), strict=True):
        assert one.state(state) == other.state(state)
        assert [*map(one.action, near.actions)] == [*map(other.action, near.actions)]
    assert far.step("Up") == near.step("Up")
    assert far.has_expert
    assert far.has_features
    copied = copy.deepcopy(far)
    assert copied.step("Left") == near.step("Left")
    assert far.get_state() != near.get_state(), "the copy alone has moved"
    assert far.draw(state) == near.draw(state)
    assert list(far.vocabulary()) == list(near.vocabulary())
    assert (type(far).__name__, far.name, far.actions) == ("Sokoban", near.name, near.actions)
    plain = type(host.wrap(FaultyLamp("", None)))
    assert plain.symmetries is TextEnv.symmetries, "what is not defined is not forwarded"


def test_symmetries_outlive_an_episode_and_the_process(host: EnvHost) -> None:
    """Hindsight imitation lists them once, and then plays a variant after the other; a hang of
    another trajectory may end their process in between."""
    near, far = Sokoban(), host.wrap(Sokoban())
    near.reset(seed=3)
    far.reset(seed=3)
    listed, state = far.symmetries(), near.get_state()
    far.reset(seed=4)
    for worker in host._workers:
        worker.stop()
    for one, other in zip(near.symmetries(), listed, strict=True):
        assert one.state(state) == other.state(state)
        assert [*map(one.action, near.actions)] == [*map(other.action, near.actions)]


class WithoutAnswers(Sokoban):
    """Says of itself that this task has neither expert nor features, as an adapter's may."""

    has_expert = False  # type: ignore[assignment]
    has_features = False  # type: ignore[assignment]


def test_what_a_task_says_it_lacks_it_lacks_in_a_worker(host: EnvHost) -> None:
    there = host.wrap(WithoutAnswers())
    assert not there.has_expert
    assert not there.has_features


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("hang", "step took longer than 1 s (rollout.step_timeout_s): it was ended"),
        ("die", "step ended its process (exit code 7)"),
    ],
)
def test_a_hang_or_a_crash_costs_its_own_trajectory_only(
    deed: str, told: str, host: EnvHost, faults: list[Fault]
) -> None:
    good, bad = play(host.wrap(Rebellious(deed)), WORKERS)
    assert good == play(NamedLamp())[0], "played again where it shared the process"
    reasons = {t.error: t.stop_reason for t in bad.trajectories}
    assert reasons[told] is StopReason.ENV_ERROR
    assert set(reasons) <= {told, ""}, "a trajectory that ended before its second press is sound"
    failed = sum(t.error == told for t in bad.trajectories)
    kinds = [fault.kind for fault in faults]
    assert kinds.count(FaultKind.ENVIRONMENT) == kinds.count(FaultKind.WORKER) == failed > 0


def test_what_cannot_be_built_is_told_at_every_call(host: EnvHost) -> None:
    env = host.wrap(Unbuildable())
    for _ in range(2):
        with pytest.raises(RemoteError, match="the corpus is missing"):
            env.reset(seed=1)


def test_what_cannot_be_sent_is_told(host: EnvHost) -> None:
    _, bad = play(host.wrap(Rebellious("withhold")), WORKERS)
    assert any("pickle" in trajectory.error for trajectory in bad.trajectories)
    unpicklable = NamedLamp()
    unpicklable.hook = lambda: 1  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"NamedLamp cannot .* set rollout.env_workers to 0"):
        host.wrap(unpicklable)


_RUN = """
import sys
from ragen_pl.envs.workers import EnvHost
from tests.support.faulty import Rebellious
host = EnvHost(2, None)
env = host.wrap(Rebellious("sleep"))
env.reset(seed=1)
print(env._worker._process.pid, flush=True)
if sys.argv[1] == "hangs":
    env.step("on"), env.step("on")
elif sys.argv[1] == "waits":
    sys.stdin.read()
"""


@pytest.mark.run
@pytest.mark.parametrize(
    ("doing", "signum"),
    [("hangs", signal.SIGKILL), ("waits", signal.SIGTERM), ("ends", None)],
)
def test_no_process_is_left(doing: str, signum: int | None, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, doing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    if signum is not None:
        time.sleep(0.5)
        process.send_signal(signum)
    process.wait(timeout=30)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"group_size": 4097}, "rollout.group_size is 4097; it must be at most 4096"),
        ({"env_workers": -1}, "rollout.env_workers is -1"),
        ({"step_timeout_s": 5.0}, "rollout.step_timeout_s is 5, but rollout.env_workers is 0"),
        ({"env_workers": 1, "step_timeout_s": 0.0}, "rollout.step_timeout_s is 0.0"),
    ],
)
def test_keys_that_cannot_act_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        RolloutConfig(**keys)


def test_what_a_prompt_says_is_the_same_and_names_are_each_instances_own(host: EnvHost) -> None:
    sudoku = Sudoku()
    far = host.wrap(sudoku)
    sudoku.reset(seed=0)
    far.reset(seed=0)
    public = ["name", *(each for each in dir(TextEnv) if not each.startswith("_"))]
    texts = [each for each in public if isinstance(getattr(sudoku, each, None), str)]
    assert {"actions_text", "instruction", "name"} <= set(texts)
    assert [getattr(far, each) for each in texts] == [getattr(sudoku, each) for each in texts]
    one, other = Sudoku(), Sudoku()
    one.name, other.name = "one", "other"
    assert [host.wrap(one).name, copy.deepcopy(host.wrap(other)).name] == ["one", "other"]
