"""The client of an OpenEnv server, against this library's own server and against odd ones."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from ragen_pl.envs import FrozenLake, SearchQA, Sokoban
from ragen_pl.envs.adapters import OpenEnv
from ragen_pl.envs.contract import check_contract
from ragen_pl.envs.outward.openenv_server import OpenEnvServer
from tests.support.faulty import FaultyLamp
from tests.support.openenv_serving import serving, serving_env

Answer = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module", name="url")
def _url() -> Iterator[str]:
    with serving_env(FrozenLake(intended=0.5), max_sessions=32) as url:
        yield url


def lake(url: str, **arguments: Any) -> OpenEnv:
    options = {"actions": FrozenLake.actions, "success_key": "success", "max_actions": 10}
    return OpenEnv(url, **{**options, "split": "all", **arguments})


@contextmanager
def odd_server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Serve what a function answers; None closes the connection. Yield address and messages."""
    received: list[dict[str, Any]] = []

    async def session(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse()
        await response.prepare(request)
        async for message in response:
            assert message.type is WSMsgType.TEXT
            received.append(json.loads(message.data))
            given = answer(received[-1])
            given = await given if isinstance(given, Awaitable) else given
            if given is None:
                await response.close()
            elif isinstance(given, str):
                await response.send_str(given)
            else:
                await response.send_json(given)
        return response

    app = web.Application()
    app.add_routes([web.get("/ws", session)])
    with serving(app) as url:
        yield url, received


def observed(text: object = "here", reward: object = 0.0, done: object = False) -> dict[str, Any]:
    data = {"observation": {"text": text, "extra": 1}, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def played(env: Any, seed: int, noise_seed: int) -> list[Any]:
    text, _ = env.reset(seed=seed, options={"noise_seed": noise_seed})
    rng, steps, done = random.Random(seed), [text], False
    while not done:
        text, reward, terminated, truncated, info = env.step(rng.choice(FrozenLake.actions))
        steps.append((text, reward, terminated, truncated, info["success"]))
        done = terminated or truncated
    return steps


def test_a_served_environment_plays_like_itself(url: str) -> None:
    far, near = lake(url), FrozenLake(intended=0.5)
    for seed in range(12):
        assert played(far, seed, seed + 1) == played(near, seed, seed + 1)
        assert far.instruction == near.instruction
        assert far.difficulty_of(seed) == near.difficulty_of(seed) != ""


def test_the_tools_of_a_served_environment_are_told() -> None:
    near = SearchQA(people=60)
    with serving_env(near) as url:
        far = OpenEnv(url, max_actions=3)
        assert far.actions_text == "free text"
        text, info = far.reset(seed=4)
        assert (text, info["difficulty"]) == (near.reset(seed=4)[0], "2")
        assert far.actions_text == near.actions_text
        assert '{"name": "search", "description": "Search the documents' in far.actions_text
        far.step('{"name": "search", "arguments": {"query": "tea"}}')
        assert far.actions_text == near.actions_text


def test_the_contract_holds(url: str) -> None:
    check_contract(lake(url), "env")
    check_contract(lake(url, split="train"), "env")
    with serving_env(Sokoban()) as free:  # any text is a message
        check_contract(OpenEnv(free, split="all"), "env")


def test_copies_are_sessions_of_their_own_and_go_on_where_they_were(url: str) -> None:
    env = lake(url)
    env.reset(seed=3, options={"noise_seed": 5})
    env.step("Down")
    for twin in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert twin.get_state() == env.get_state()
        original = copy.deepcopy(env)
        assert twin.step("Right") == original.step("Right")
    env.reset(seed=4)
    assert twin.get_state()["seed"] == 3


def test_threads_play_at_once(url: str) -> None:
    env = lake(url)
    with ThreadPoolExecutor(8) as threads:
        far = list(threads.map(lambda s: played(copy.deepcopy(env), s, 0), range(16)))
    assert far == [played(FrozenLake(intended=0.5), seed, 0) for seed in range(16)]


def test_splits_are_disjoint_by_the_first_observation(url: str) -> None:
    starts = {}
    for split in ("train", "eval"):
        env = lake(url, split=split)
        starts[split] = {env.reset(seed=seed)[0] for seed in range(15)}
    assert not starts["train"] & starts["eval"]


def test_what_is_sent_and_read_is_named_by_keys() -> None:
    def answer(message: dict[str, Any]) -> Any:
        if message["type"] == "reset":
            return {"data": {"observation": {"echoed": "hello"}, "reward": None}}
        ends = message["data"] == {"move": "go"}
        return {"data": {"observation": {"echoed": "bye"}, "reward": 2, "done": ends}}

    with odd_server(answer) as (url, received):
        env = OpenEnv(
            f"{url}/",
            "Go.",
            action_key="move",
            observation_key="echoed",
            reset_arguments={"level": 3},
            split="all",
            success_reward=2.0,
        )
        assert env.reset(seed=1, options={"noise_seed": 2}) == ("hello", {})
        assert env.step("stay") == ("bye", 2.0, False, False, {"success": False})
        assert env.step("go") == ("bye", 2.0, True, False, {"success": True})
    assert [each["data"] for each in received] == [
        {"level": 3, "seed": 1, "noise_seed": 2},
        {"move": "stay"},
        {"move": "go"},
    ]


@pytest.mark.parametrize(
    ("answer", "arguments", "told"),
    [
        ({"type": "observation"}, {}, "which has no observation"),
        ("[1]", {}, "its answer is no object"),
        ("{", {}, "its answer is no JSON"),
        (observed(3), {}, "no text at 'text'; it has text, extra: set observation_key"),
        (observed("x" * 100_001), {}, "100001 characters"),
        (observed(), {"instruction": None}, "no text at 'instruction'.*give instruction"),
        (observed(), {"observation_key": "state"}, "no text at 'state'"),
        (observed(reward="much"), {}, "reward is 'much'"),
        (observed(done=True), {}, "ends with its reset"),
        (None, {}, "broke off: it was closed"),
        (
            {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "ouch"}},
            {},
            "answered a reset with EXECUTION_ERROR: ouch",
        ),
        (
            {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}},
            {},
            "raise its number of concurrent sessions",
        ),
        ({"type": "error"}, {}, "answered a reset with UNKNOWN"),
    ],
)
def test_answers_that_are_none_are_told(answer: Any, arguments: dict[str, Any], told: str) -> None:
    with odd_server(lambda _: answer) as (url, _):
        env = OpenEnv(url, **{"instruction": "Go.", "split": "all", **arguments})
        with pytest.raises((ValueError, ConnectionError, RuntimeError), match=told):
            env.reset(seed=1)


def test_a_missing_success_key_is_told() -> None:
    with odd_server(lambda _: observed()) as (url, _):
        env = OpenEnv(url, "Go.", success_key="won", split="all")
        env.reset(seed=1)
        with pytest.raises(ValueError, match="no 'won'; it has text, extra"):
            env.step("go")


def test_silence_ends_the_call_and_the_next_reset_connects_again() -> None:
    async def answer(message: dict[str, Any]) -> Any:
        if message["type"] == "step":
            await asyncio.sleep(30)
        return observed(f"seed {message['data']['seed']}")

    with odd_server(answer) as (url, _):
        env = OpenEnv(url, "Go.", split="all", time_limit=0.2)
        env.reset(seed=1)
        before = time.monotonic()
        with pytest.raises(TimeoutError, match=r"did not answer a step within 0.2 s: raise"):
            env.step("go")
        assert time.monotonic() - before < 5
        assert env.reset(seed=2)[0] == "seed 2"


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        env = OpenEnv(f"http://127.0.0.1:{taken.getsockname()[1]}", "Go.")
        with pytest.raises(ConnectionError, match=r"cannot be reached.*start the server"):
            env.reset(seed=0)
        with pytest.raises(ValueError, match=r"env is OpenEnv.*cannot be reached"):
            check_contract(env, "env")


def test_an_episode_is_played_again_where_its_connection_was_closed_in_between() -> None:
    served: list[int] = []

    def answer(message: dict[str, Any]) -> Any:
        served.append(0)
        return observed(f"{message['type']}")

    with odd_server(answer) as (url, received):
        env = OpenEnv(url, "Go.", split="all")
        env.reset(seed=1)
        env.step("a")
        env._session._drop()
        assert env.step("b")[0] == "step"
    assert [each["data"].get("message", "reset") for each in received] == [
        *("reset", "a"),
        *("reset", "a", "b"),
    ]


def test_a_server_that_does_not_repeat_itself_is_told() -> None:
    numbers = iter(range(100))
    with odd_server(lambda _: observed(f"number {next(numbers)}")) as (url, _):
        env = OpenEnv(url, "Go.", split="all")
        env.reset(seed=1)
        with pytest.raises(RuntimeError, match="do not follow from seed and actions"):
            copy.deepcopy(env).step("a")


def test_faults_of_a_served_environment_are_told_and_the_next_reset_works() -> None:
    with serving_env(FaultyLamp("step", ZeroDivisionError("ouch"))) as url:
        env = OpenEnv(url, split="all", actions=("on", "off"))
        env.reset(seed=1)
        with pytest.raises(RuntimeError, match="step raised ZeroDivisionError: ouch"):
            env.step("on")
        env.reset(seed=2)
        env.step("on")


def test_sessions_end_with_their_copies() -> None:
    server = OpenEnvServer(FrozenLake(), max_sessions=2)
    with serving(server.application()) as url:
        env = lake(url)
        for seed in range(4):  # more than there may be at once
            twin = copy.deepcopy(env)
            twin.reset(seed=seed)
            del twin
            deadline = time.monotonic() + 5
            while server._num_sessions and time.monotonic() < deadline:
                time.sleep(0.01)
        assert server._num_sessions == 0


def test_a_fork_connects_anew(url: str) -> None:
    env = lake(url)
    first, _ = env.reset(seed=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        try:
            os.write(writing, copy.deepcopy(env).reset(seed=1)[0].encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 10_000).decode() == first
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"url": "localhost:8000"}, "url: 'localhost:8000' is no address"),
        ({"url": "ftp://x"}, "is no address such as"),
        ({"max_actions": 0}, "max_actions: 0"),
        ({"time_limit": 0.0}, "time_limit: 0.0"),
        ({"actions": ()}, "actions: an empty list"),
        ({"split": "evla"}, "did you mean 'eval'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        OpenEnv(**{"url": "http://127.0.0.1:1", **arguments})


def test_addresses(url: str) -> None:
    for address in (url, f"{url}/", f"{url}/ws", url.replace("http", "ws")):
        assert lake(address).reset(seed=1)[0]
