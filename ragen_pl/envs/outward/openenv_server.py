"""An environment as an OpenEnv server, for OpenEnv's own clients and the trainers that use them.

The protocol is that of ``openenv`` 0.10: one session per WebSocket at ``/ws``, and JSON messages
``{"type": "reset" | "step" | "state" | "close", "data": {...}}``. Neither OpenEnv nor FastAPI is
needed: the server is built on aiohttp, which Lightning installs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from ragen_pl.envs.base import MAX_TEXT_LENGTH, TextEnv
from ragen_pl.envs.boundary import EnvError
from ragen_pl.envs.outward.episode import OutOfTurnError, OutwardEpisode, Reply, Task

_LARGEST_MESSAGE = 8 * MAX_TEXT_LENGTH
"""Bytes; JSON may write a character with six."""
_WAITING = 16
"""Messages of one session that may wait for their turn."""
_SEEDS = 1 << 31
_HEARTBEAT_S = 30.0

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
ACTION_SCHEMA: Mapping[str, Any] = {
    "title": "Action",
    "type": "object",
    "properties": {"message": {**_TEXT, "description": "One action: its name, or free text"}},
    "required": ["message"],
}
OBSERVATION_SCHEMA: Mapping[str, Any] = {
    "title": "Observation",
    "type": "object",
    "properties": {
        "text": {**_TEXT, "description": "What the agent sees"},
        "instruction": {**_TEXT, "description": "The task in words, after a reset"},
        "actions": {
            "anyOf": [{"type": "array", "items": _TEXT}, {"type": "null"}],
            "description": "Names of the actions, after a reset; null for free text",
        },
        "actions_text": {
            **_TEXT,
            "description": "What a prompt says of the actions, tools included, after a reset",
        },
        "difficulty": {**_TEXT, "description": "The difficulty of the start, after a reset"},
        "actions_left": {"type": "integer", "description": "Messages until the episode ends"},
        "success": {**_FLAG, "description": "Whether the task is done"},
        "truncated": {**_FLAG, "description": "Whether a limit ended the episode"},
        "done": _FLAG,
        "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["text", "actions_left", "success", "truncated"],
}
STATE_SCHEMA: Mapping[str, Any] = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"anyOf": [_TEXT, {"type": "null"}]},
        "step_count": {"type": "integer"},
        "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "noise_seed": {"type": "integer"},
        "env_state": {"type": "object", "description": "What get_state returns; a dict of JSON"},
    },
}

T = TypeVar("T")


class _RefusedError(Exception):
    """A message that cannot be carried out.

    Args:
        code: OpenEnv's name of the kind of error.
        text: The message for the client.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class _Reset:
    """The data of a reset."""

    seed: int
    noise_seed: int
    episode_id: str


class _Session:
    """The episodes of one client, on an environment of its own; its methods block.

    Args:
        env: The environment, which is copied.
    """

    def __init__(self, env: TextEnv) -> None:
        self._episode = OutwardEpisode(env)
        self._current: _Reset | None = None
        self._max_actions = 0

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Begin an episode; return OpenEnv's answer."""
        wanted = _Reset(
            _seed(data, "seed", secrets.randbelow(_SEEDS)),
            _seed(data, "noise_seed", 0),
            _episode_id(data),
        )
        self._current = None
        task, reply = self._episode.begin(wanted.seed, wanted.noise_seed)
        self._current, self._max_actions = wanted, task.max_actions
        return self._answer(reply, task)

    def step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Take the action of a message; return OpenEnv's answer."""
        message = data.get("message")
        if not isinstance(message, str):
            raise _RefusedError(
                "VALIDATION_ERROR",
                f'an action is {{"message": text}}, but the data has {sorted(map(str, data))}',
            )
        if len(message) > MAX_TEXT_LENGTH:
            raise _RefusedError(
                "VALIDATION_ERROR",
                f"the message has {len(message)} characters; {MAX_TEXT_LENGTH} are allowed",
            )
        return self._answer(self._episode.act(message), None)

    def state(self) -> dict[str, Any]:
        """Return the state of the episode."""
        current = self._current
        if current is None:
            return {"episode_id": None, "step_count": 0}
        steps = self._episode.num_messages
        return {**asdict(current), "step_count": steps, "env_state": self._episode.state()}

    def _answer(self, reply: Reply, task: Task | None) -> dict[str, Any]:
        observation: dict[str, Any] = {
            "text": reply.text,
            "actions_left": self._max_actions - self._episode.num_messages,
            "success": reply.success,
            "truncated": reply.truncated,
        }
        if task is not None:
            actions = None if task.actions is None else list(task.actions)
            observation |= {"instruction": task.instruction, "actions": actions}
            observation["actions_text"] = task.actions_text
            observation |= {"difficulty": task.difficulty} if task.difficulty else {}
        reward = None if task is not None else reply.reward
        return {"observation": observation, "reward": reward, "done": reply.done}


def _seed(data: Mapping[str, Any], key: str, default: int) -> int:
    """Return a seed of a reset's data.

    Raises:
        _RefusedError: if it is not an integer of 0 or more.
    """
    given = data.get(key)
    if given is None:
        return default
    if type(given) is not int or given < 0:
        raise _RefusedError(
            "VALIDATION_ERROR", f"{key} is {given!r:.80}; it must be an integer of 0 or more"
        )
    return given


def _episode_id(data: Mapping[str, Any]) -> str:
    given = data.get("episode_id")
    if given is None:
        return secrets.token_hex(8)
    if not isinstance(given, str) or len(given) > 255:
        raise _RefusedError("VALIDATION_ERROR", "episode_id must be a text of up to 255 characters")
    return given


class OpenEnvServer:
    """A server of one environment; each session plays a copy of its own.

    Sessions are played in threads, so that one which is slow holds up no other. What an environment
    does wrong is answered with an error and ends the episode; the session goes on with a reset.
    HTTP requests without a WebSocket share no episode, so ``POST /reset`` shows a first observation
    and ``POST /step`` is refused, with the remedy.

    Args:
        env: The environment, which is not changed.
        max_sessions: Sessions at a time; further ones are refused.
    """

    def __init__(self, env: TextEnv, max_sessions: int = 256) -> None:
        self._env, self._max_sessions = env, max_sessions
        self._num_sessions = 0
        self._threads = ThreadPoolExecutor(max_sessions, thread_name_prefix="session")

    @property
    def name(self) -> str:
        """The environment's name."""
        return self._env.name

    def application(self) -> web.Application:
        """Return the application, to be run by aiohttp."""
        app = web.Application(middlewares=[_refuse_other_origins], client_max_size=_LARGEST_MESSAGE)
        app.add_routes(
            [
                web.get("/", self._about),
                web.get("/health", _healthy),
                web.get("/metadata", self._about),
                web.get("/schema", _schema),
                web.get("/state", self._first_state),
                web.post("/reset", self._show_start),
                web.post("/step", _refuse_step),
                web.get("/ws", self._serve_session),
            ]
        )
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    # --- sessions -------------------------------------------------------------------------------

    async def _serve_session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=_HEARTBEAT_S, max_msg_size=_LARGEST_MESSAGE)
        await socket.prepare(request)
        if self._num_sessions >= self._max_sessions:
            told = f"all {self._max_sessions} sessions are in use: close one, or raise --sessions"
            await socket.send_json(_error("CAPACITY_REACHED", told))
            await socket.close()
            return socket
        self._num_sessions += 1
        waiting: asyncio.Queue[str | bytes] = asyncio.Queue(_WAITING)
        answering = asyncio.create_task(self._answer_all(socket, waiting))
        try:
            # Read on while an environment thinks, so that pings are answered.
            async for message in socket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    continue
                if waiting.full():
                    told = f"more than {_WAITING} messages wait: wait for each answer"
                    await socket.send_json(_error("SESSION_ERROR", told))
                    break
                waiting.put_nowait(message.data)
        finally:
            answering.cancel()
            self._num_sessions -= 1
            with suppress(asyncio.CancelledError, ConnectionError):
                await answering
        return socket

    async def _answer_all(
        self, socket: web.WebSocketResponse, waiting: asyncio.Queue[str | bytes]
    ) -> None:
        """Answer a session's messages, one after the other, until the client closes it."""
        session: _Session | None = None
        try:
            while not socket.closed:
                raw = await waiting.get()
                try:
                    kind, data = _message(raw)
                    if kind == "close":
                        return
                    if session is None:
                        session = await self._in_thread(_Session, self._env)
                    answer = await self._in_thread(_carry_out, session, kind, data)
                except _RefusedError as error:
                    answer = _error(error.code, str(error))
                except (EnvError, OutOfTurnError) as error:
                    answer = _error("EXECUTION_ERROR", str(error))
                await socket.send_json(answer)
        finally:  # else the client would wait for ever
            await socket.close()

    # --- requests -------------------------------------------------------------------------------

    async def _about(self, _: web.Request) -> web.Response:
        told = {"name": self.name, "description": await self._in_thread(self._describe)}
        with suppress(PackageNotFoundError):  # run from its folder
            told["version"] = version("ragen-pl")
        return web.json_response(told)

    def _describe(self) -> str:
        """Return the task in words, that of seed 0 where it depends on the start."""
        try:
            return OutwardEpisode(self._env).begin(0, 0)[0].instruction
        except EnvError as error:
            return str(error)

    async def _show_start(self, request: web.Request) -> web.Response:
        try:
            data = _object(await request.read() or b"{}")
            answer = await self._in_thread(lambda: _Session(self._env).reset(data))
        except _RefusedError as error:
            return web.json_response({"detail": str(error)}, status=422)
        except EnvError as error:
            return web.json_response({"detail": str(error)}, status=500)
        return web.json_response(answer)

    async def _first_state(self, _: web.Request) -> web.Response:
        return web.json_response({"episode_id": None, "step_count": 0})


def _carry_out(session: _Session, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "reset":
        return {"type": "observation", "data": session.reset(data)}
    if kind == "step":
        return {"type": "observation", "data": session.step(data)}
    return {"type": "state", "data": session.state()}


def _message(raw: str | bytes) -> tuple[str, Mapping[str, Any]]:
    """Return the kind and the data of a message.

    Raises:
        _RefusedError: if it is none.
    """
    given = _object(raw)
    kind, data = given.get("type"), given.get("data") or {}
    if kind not in ("reset", "step", "state", "close"):
        raise _RefusedError(
            "UNKNOWN_TYPE", f"the type is {kind!r:.80}; known are reset, step, state and close"
        )
    if not isinstance(data, dict):
        raise _RefusedError("VALIDATION_ERROR", "data must be an object")
    return str(kind), data


def _object(raw: str | bytes) -> dict[str, Any]:
    try:
        given = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _RefusedError("INVALID_JSON", f"not JSON: {error}") from error
    if not isinstance(given, dict):
        raise _RefusedError("VALIDATION_ERROR", "a message must be an object")
    return given


def _error(code: str, text: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": text, "code": code}}


async def _healthy(_: web.Request) -> web.Response:
    return web.json_response({"status": "healthy"})


async def _schema(_: web.Request) -> web.Response:
    return web.json_response(
        {"action": ACTION_SCHEMA, "observation": OBSERVATION_SCHEMA, "state": STATE_SCHEMA}
    )


async def _refuse_step(_: web.Request) -> web.Response:
    told = "HTTP requests share no episode: reset and step through the WebSocket at /ws"
    return web.json_response({"detail": told}, status=409)


@web.middleware
async def _refuse_other_origins(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse requests that a page of another site makes in somebody's browser."""
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        return web.json_response({"detail": f"requests from {origin} are refused"}, status=403)
    return await handler(request)
