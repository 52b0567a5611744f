"""``run.py serve`` serves what it is given, or says in one line why it cannot."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ragen_pl.cli import serve as command
from ragen_pl.cli.entry_point import main
from ragen_pl.envs import FrozenLake, Sokoban
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.outward.openenv_server import OpenEnvServer
from tests.support.openenv_serving import talk

ROOT = Path(__file__).resolve().parents[2]
SOKOBAN = "ragen_pl.envs.Sokoban"


@pytest.fixture(name="served")
def _served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[TextEnv, str, int]]:
    """Collect what would be served, and end at once."""
    found: list[tuple[TextEnv, str, int]] = []

    async def run(server: OpenEnvServer, host: str, port: int) -> None:
        found.append((server._env, host, port))

    monkeypatch.setattr(command, "_run", run)
    return found


def test_the_environment_of_a_config(served: list[tuple[TextEnv, str, int]]) -> None:
    arguments = ["--data.env.init_args.max_actions", "7"]
    assert main(["serve", "--config", "sokoban.yaml", *arguments]) == 0
    ((env, host, port),) = served
    assert isinstance(env, Sokoban)
    assert (env.max_actions, host, port) == (7, "127.0.0.1", 8000)


def test_that_of_an_evaluation_set(served: list[tuple[TextEnv, str, int]]) -> None:
    assert main(["serve", "--config", "frozen_lake.yaml", "--eval_set", "default"]) == 0
    (env,) = (each[0] for each in served)
    assert isinstance(env, FrozenLake)
    assert env.split == "eval"


def test_a_class_with_its_arguments(served: list[tuple[TextEnv, str, int]]) -> None:
    given = ["--env", "ragen_pl.envs.Sokoban", "--env.max_actions", "7", "--port", "0"]
    assert main(["serve", *given]) == 0
    ((env, _, port),) = served
    assert isinstance(env, Sokoban)
    assert (env.max_actions, port) == (7, 0)


def test_processes_with_a_limit(served: list[tuple[TextEnv, str, int]]) -> None:
    assert main(["serve", f"--env={SOKOBAN}", "--workers", "1", "--time_limit", "5"]) == 0
    (env,) = (each[0] for each in served)
    assert not isinstance(env, Sokoban)
    assert env.name == "sokoban"


def test_a_bare_name_is_the_environments_beside_one_in_processes(
    served: list[tuple[TextEnv, str, int]],
) -> None:
    assert main(["serve", "--env", "Sokoban", "--workers", "1"]) == 0
    assert main(["serve", "--env", "Sokoban"]) == 0
    assert type(served[1][0]) is Sokoban


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give a config first"),
        (["--config", "sokoban.yaml", "--eval_set", "none"], "not among data.eval_sets"),
        (["--config", "mixture.yaml"], "--eval_set sokoban or frozen_lake or bandit"),
        (["--env", "Sokobann"], "did you mean Sokoban?"),
        (["--env", SOKOBAN, "--eval_set", "default"], "has no evaluation sets"),
        (["--env", SOKOBAN, "--time_limit", "3"], "--workers is 0"),
        (["--env", SOKOBAN, "--time_limit", "soon"], "soon is not a positive number of seconds"),
        (["--config", "sokoban.yaml", "--workers", "2"], "--data.rollout.env_workers"),
        (["--env", SOKOBAN, "--env.max_actions", "0"], "max_actions: 0"),
        (["--env", SOKOBAN, "--env.nothing", "0"], "nothing"),
        (["--env", SOKOBAN, "--sessions", "0"], "--sessions is 0"),
        (["--env", SOKOBAN, "--port", "70000"], "--port is 70000"),
        (["--env", SOKOBAN, "--port", "http"], "invalid int value"),
        (["--env", SOKOBAN, "--workers", "-1"], "workers"),
    ],
)
def test_what_cannot_be_served_is_told(
    arguments: list[str],
    told: str,
    served: list[tuple[TextEnv, str, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert told in said
    assert not served


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--env", SOKOBAN, "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"--port {port} cannot be listened at" in said
    assert "--port, or 0 for a free one" in said


@pytest.mark.run
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_process_serves_until_it_is_interrupted(workers: str) -> None:
    # Tests that run in the background of a shell ignore SIGINT, and so would the server.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "run.py", "serve", f"--env={SOKOBAN}", "--port=0", "--workers", workers],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        step = {"type": "step", "data": {"message": "Up"}}
        first, second = talk(found[0], {"type": "reset", "data": {"seed": 1}}, step)
        assert [each["type"] for each in (first, second)] == ["observation"] * 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
