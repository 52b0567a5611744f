"""The tools of an MCP server in a subprocess."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp: pip install -e '.[mcp]'")

from ragen_pl.envs.tools import MCPServer, ToolEnv, ToolUnavailableError
from ragen_pl.envs.tools.mcp_server import end_servers

SERVER = [sys.executable, str(Path(__file__).parents[2] / "support" / "mcp_tools.py")]

pytestmark = pytest.mark.run


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    end_servers()


class Asking(ToolEnv):
    """An environment with the server's tools alone."""

    name, instruction, task = "asking", "Ask.", "Why?"

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.toolboxes = (MCPServer(SERVER, timeout_s=timeout_s),)

    def begin(self, seed: int, noise_seed: int) -> dict[str, Any]:
        return {}


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def test_an_agent_calls_the_server_and_is_told_of_wrong_calls() -> None:
    env = Asking()
    names = [tool["function"]["name"] for tool in env.tools]
    assert names == ["add", "process", "broken", "leave", "sleep"]
    env.reset(seed=0)
    assert env.step(call("add", a=1, b=2))[0] == "Why?\n3"
    assert env.step(call("add", a=1, b="2"))[0] == (
        "Why?\nError: b of add is '2'; it must be an integer"
    )
    assert "Error executing tool broken" in env.step(call("broken"))[0]
    assert "there is no tool 'subtract'" in env.step(call("subtract"))[0]


def test_copies_share_the_server_and_states_are_restored_without_it() -> None:
    env = Asking()
    env.reset(seed=0)
    first = env.step(call("process"))[0]
    twin = pickle.loads(pickle.dumps(copy.deepcopy(env)))
    assert twin.step(call("process"))[0] == first
    end_servers()
    twin.set_state(json.loads(json.dumps(env.get_state())))
    assert twin.render_text() == first
    assert twin.step(call("process"))[0] != first  # another process


def test_a_server_that_ends_or_hangs_ends_the_trajectory_and_starts_again() -> None:
    env = Asking(timeout_s=15.0)
    env.reset(seed=0)
    assert env.step(call("add", a=2, b=2))[0] == "Why?\n4"
    with pytest.raises(ToolUnavailableError, match=r"failed: .*Connection closed"):
        env.step(call("leave"))
    env.reset(seed=0)
    assert env.step(call("add", a=2, b=3))[0] == "Why?\n5"
    slow = MCPServer(SERVER, {"HURRY": "1"}, timeout_s=8.0)
    assert slow.call("add", {"a": 1, "b": 1}) == "2"
    with pytest.raises(ToolUnavailableError, match="timed out"):
        slow.call("sleep", {"seconds": 60})


def test_a_call_may_wait_longer_for_its_turn_than_it_may_take() -> None:
    server = MCPServer(SERVER, {"TURNS": "1"}, timeout_s=8.0)
    server.schemas()
    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(server.call, "sleep", {"seconds": 3.4}) for _ in range(3)]
        assert [each.result() for each in calls] == ["awake"] * 3


def test_a_connection_that_is_given_up_ends_its_server_before_the_next_starts() -> None:
    server = MCPServer(SERVER)
    first = int(server.call("process", {}))
    server._connection()._error = "gave no answer"
    assert int(server.call("process", {})) != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_servers_end_in_the_middle_of_a_call() -> None:
    server = MCPServer(SERVER)
    process = int(server.call("process", {}))
    with ThreadPoolExecutor() as threads:
        call = threads.submit(server.call, "sleep", {"seconds": 60})
        while not server._connection()._in_hand:
            time.sleep(0.05)
        end_servers()
        with pytest.raises(ToolUnavailableError, match="Cancelled"):
            call.result()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.fixture(name="address")
def _address() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start the server over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with subprocess.Popen([*SERVER, str(port)], stderr=subprocess.DEVNULL) as process:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
        process.kill()


def test_a_server_that_runs_elsewhere_is_called_at_its_address(
    address: tuple[str, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, process = address
    monkeypatch.setenv("SOME_TOKEN", "secret")
    box = MCPServer(url=url, token_variable="SOME_TOKEN", timeout_s=10.0)
    assert [schema.name for schema in box.schemas()][:2] == ["add", "process"]
    assert int(box.call("process", {})) == process.pid
    assert pickle.loads(pickle.dumps(box)).call("add", {"a": 1, "b": 2}) == "3"
    assert box.call("broken", {}).startswith("Error: ")
    process.kill()
    process.wait()
    for _ in range(2):
        with pytest.raises(ToolUnavailableError, match=f"the MCP server at {re.escape(url)}"):
            box.call("add", {"a": 1, "b": 2})


@pytest.mark.parametrize("command", [["/nowhere"], [sys.executable, "-c", "print(1)"]])
def test_what_is_no_server_is_named(command: list[str]) -> None:
    with pytest.raises(ToolUnavailableError, match=f"the MCP server {command[0]}.* failed: "):
        MCPServer(command, timeout_s=10.0).schemas()


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="command: it is empty"):
        MCPServer([])
    with pytest.raises(ValueError, match="neither command nor url is given"):
        MCPServer()
    with pytest.raises(ValueError, match="command and url are both given"):
        MCPServer(["x"], url="http://127.0.0.1:1/mcp")
    with pytest.raises(ValueError, match=r"url: '127\.0\.0\.1' is no address"):
        MCPServer(url="127.0.0.1")
    with pytest.raises(ValueError, match="environment is given, which is for a command"):
        MCPServer(url="http://127.0.0.1:1/mcp", environment={})
    with pytest.raises(ValueError, match="token_variable is KEY, which is for a server at a url"):
        MCPServer(["x"], token_variable="KEY")
    with pytest.raises(ValueError, match="variable NO_SUCH_TOKEN is not set"):
        MCPServer(url="http://127.0.0.1:1/mcp", token_variable="NO_SUCH_TOKEN")
    with pytest.raises(ValueError, match="timeout_s: 0 is not positive"):
        MCPServer(["x"], timeout_s=0)
