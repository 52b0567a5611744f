"""OpenEnv's protocol: its messages in, its answers out, whatever is sent."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Mapping
from typing import Any

import aiohttp
import jsonschema
import pytest

from ragen_pl.envs import Sokoban
from ragen_pl.envs.outward.openenv_server import (
    ACTION_SCHEMA,
    OBSERVATION_SCHEMA,
    STATE_SCHEMA,
)
from tests.support.faulty import FaultyLamp
from tests.support.lamps import Lamp
from tests.support.openenv_serving import serving_env, talk


def reset(**data: Any) -> dict[str, Any]:
    return {"type": "reset", "data": data}


def step(message: object) -> dict[str, Any]:
    return {"type": "step", "data": {"message": message}}


def ask(url: str, method: str, path: str, **options: Any) -> tuple[int, Any]:
    async def request() -> tuple[int, Any]:
        async with (
            aiohttp.ClientSession() as client,
            client.request(method, f"{url}{path}", **options) as response,
        ):
            return response.status, await response.json()

    return asyncio.run(request())


def test_an_episode_is_the_environment_s_own() -> None:
    env = Sokoban()
    twin = copy.deepcopy(env)
    text, _ = twin.reset(seed=7, options={"noise_seed": 3})
    with serving_env(env) as url:
        first, second, state = talk(
            url, reset(seed=7, noise_seed=3, episode_id="e"), step("Up"), {"type": "state"}
        )
    assert first == {
        "type": "observation",
        "data": {
            "observation": {
                "text": text,
                "instruction": twin.instruction,
                "actions": list(twin.actions or ()),
                "actions_text": "Up, Down, Left, Right",
                "difficulty": "4-5",
                "actions_left": 10,
                "success": False,
                "truncated": False,
            },
            "reward": None,
            "done": False,
        },
    }
    text, reward, terminated, truncated, _ = twin.step("Up")
    assert second["data"]["observation"]["text"] == text
    assert second["data"]["observation"]["actions_left"] == 9
    assert second["data"]["reward"] == reward
    assert second["data"]["done"] == (terminated or truncated)
    assert state == {
        "type": "state",
        "data": {
            **{"episode_id": "e", "step_count": 1, "seed": 7, "noise_seed": 3},
            "env_state": json.loads(json.dumps(twin.get_state())),
        },
    }
    for schema, answer in (
        (OBSERVATION_SCHEMA, first["data"]["observation"]),
        (OBSERVATION_SCHEMA, second["data"]["observation"]),
        (STATE_SCHEMA, state["data"]),
        (ACTION_SCHEMA, step("Up")["data"]),
    ):
        jsonschema.validate(answer, schema)


def test_a_reset_without_a_seed_says_which_one_it_took() -> None:
    with serving_env(Sokoban()) as url:
        first, state, again = talk(url, reset(), {"type": "state"}, reset())
        (same,) = talk(url, reset(seed=state["data"]["seed"]))
    assert same["data"] == first["data"] != again["data"]


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        ("{no json", "INVALID_JSON", "not JSON"),
        ("[" * 100_000, "INVALID_JSON", "not JSON"),
        ("[]", "VALIDATION_ERROR", "must be an object"),
        ({}, "UNKNOWN_TYPE", "known are reset, step, state and close"),
        ({"type": ["step"]}, "UNKNOWN_TYPE", "known are"),
        ({"type": "step", "data": ["Up"]}, "VALIDATION_ERROR", "data must be an object"),
        (step(None), "VALIDATION_ERROR", 'an action is {"message": text}'),
        ({"type": "step", "data": {"massage": "Up"}}, "VALIDATION_ERROR", "massage"),
        (step("x" * 100_001), "VALIDATION_ERROR", "100000 are allowed"),
        (reset(seed=-1), "VALIDATION_ERROR", "seed is -1"),
        (reset(seed=True), "VALIDATION_ERROR", "seed is True"),
        (reset(seed=0, noise_seed="3"), "VALIDATION_ERROR", "noise_seed is '3'"),
        (reset(seed=0, episode_id=3), "VALIDATION_ERROR", "episode_id"),
        (step("Up"), "EXECUTION_ERROR", "reset first"),
    ],
)
def test_what_is_wrong_is_told_and_the_session_goes_on(
    message: object, code: str, told: str
) -> None:
    with serving_env(Sokoban()) as url:
        refused, after = talk(url, message, reset(seed=1))
    assert refused["type"] == "error"
    assert refused["data"]["code"] == code
    assert told in refused["data"]["message"]
    assert after["type"] == "observation"


def test_a_fault_of_the_environment_costs_its_episode_alone() -> None:
    with serving_env(FaultyLamp("step", ZeroDivisionError("ouch"))) as url:
        _, fault, ended, first, second = talk(
            url, reset(seed=1), step("on"), step("on"), reset(seed=2), step("on")
        )
    assert fault["data"]["code"] == ended["data"]["code"] == "EXECUTION_ERROR"
    assert "step raised ZeroDivisionError: ouch" in fault["data"]["message"]
    assert "reset first" in ended["data"]["message"]
    assert first["type"] == second["type"] == "observation"


def test_hostile_texts_are_answered() -> None:
    texts = ("", "\ud800", "{}<b>\x00\n", "√ß漢字🧊\u202e", "9" * 50_000)
    with serving_env(Sokoban()) as url:
        answers = talk(url, reset(seed=1), *map(step, texts))
    assert [each["type"] for each in answers] == ["observation"] * 6
    assert all("is no action" in each["data"]["observation"]["text"] for each in answers[1:])


def test_sessions_know_nothing_of_each_other() -> None:
    async def play(url: str) -> tuple[Any, Any]:
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"{url}/ws") as one,
            client.ws_connect(f"{url}/ws") as other,
        ):
            for socket, seed in ((one, 1), (other, 2)):
                await socket.send_json(reset(seed=seed))
                await socket.receive_json()
            for socket, action in ((one, "Up"), (other, "Left")):
                await socket.send_json(step(action))
                await socket.receive_json()
            for socket in (one, other):
                await socket.send_json({"type": "state"})
            return await one.receive_json(), await other.receive_json()

    with serving_env(Sokoban()) as url:
        states = asyncio.run(play(url))
    for state, seed, action in zip(states, (1, 2), ("Up", "Left"), strict=True):
        alone = Sokoban()
        alone.reset(seed=seed, options={"noise_seed": 0})
        alone.step(action)
        assert state["data"]["env_state"] == json.loads(json.dumps(alone.get_state()))


class SlowLamp(Lamp):
    """Wait in seed 1 until somebody resets with seed 2."""

    arrived = threading.Event()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        if seed == 1:
            assert self.arrived.wait(10)
        if seed == 2:
            self.arrived.set()
        return super().reset(seed=seed, options=options)


def test_a_slow_session_holds_up_no_other() -> None:
    async def play(url: str) -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.ws_connect(f"{url}/ws") as one,
            client.ws_connect(f"{url}/ws") as other,
        ):
            await one.send_json(reset(seed=1))
            await other.send_json(reset(seed=2))
            assert (await other.receive_json(timeout=5))["type"] == "observation"
            assert (await one.receive_json(timeout=5))["type"] == "observation"

    with serving_env(SlowLamp()) as url:
        asyncio.run(play(url))


def test_further_sessions_are_refused_until_one_ends() -> None:
    async def play(url: str) -> list[str]:
        codes = []
        async with aiohttp.ClientSession() as client:
            async with client.ws_connect(f"{url}/ws") as one:
                await one.send_json(reset(seed=1))
                await one.receive_json()
                async with client.ws_connect(f"{url}/ws") as other:
                    codes.append((await other.receive_json())["data"]["code"])
                await one.send_json({"type": "close"})
                assert (await one.receive()).type is aiohttp.WSMsgType.CLOSE
            async with client.ws_connect(f"{url}/ws") as third:
                await third.send_json(reset(seed=1))
                codes.append((await third.receive_json())["type"])
        return codes

    with serving_env(Sokoban(), max_sessions=1) as url:
        assert asyncio.run(play(url)) == ["CAPACITY_REACHED", "observation"]


def test_requests_without_a_session() -> None:
    env = Sokoban()
    text, _ = copy.deepcopy(env).reset(seed=7, options={"noise_seed": 0})
    with serving_env(env) as url:
        assert ask(url, "GET", "/health") == (200, {"status": "healthy"})
        about = ask(url, "GET", "/metadata")[1]
        schemas = ask(url, "GET", "/schema")[1]
        status, start = ask(url, "POST", "/reset", json={"seed": 7})
        assert ask(url, "POST", "/reset", json={"seed": "7"})[0] == 422
        assert ask(url, "POST", "/reset", data=b"\xff\xff")[0] == 422
        refused, why = ask(url, "POST", "/step", json={"action": {"message": "Up"}})
        assert ask(url, "GET", "/state") == (200, {"episode_id": None, "step_count": 0})
    assert about["name"] == "sokoban"
    assert about["description"] == env.instruction
    assert set(schemas) == {"action", "observation", "state"}
    assert (status, start["observation"]["text"]) == (200, text)
    assert (refused, "/ws" in why["detail"]) == (409, True)


def test_pages_of_other_sites_are_refused() -> None:
    with serving_env(Sokoban()) as url:
        assert ask(url, "GET", "/health", headers={"Origin": "http://evil.example"})[0] == 403
        assert ask(url, "GET", "/health", headers={"Origin": url})[0] == 200
