"""Serve an environment in OpenEnv's protocol, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
from aiohttp import web

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.outward.openenv_server import OpenEnvServer


@contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Run an application; yield its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def serving_env(env: TextEnv, max_sessions: int = 8) -> Iterator[str]:
    """Serve an environment; yield the server's address."""
    with serving(OpenEnvServer(env, max_sessions).application()) as url:
        yield url


def talk(url: str, *messages: object) -> list[Any]:
    """Send messages to one session; return the answers, None for a closed connection.

    A text is sent as it is, everything else as JSON.
    """

    async def exchange() -> list[Any]:
        answers: list[Any] = []
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{url}/ws") as socket:
            for message in messages:
                if isinstance(message, str):
                    await socket.send_str(message)
                else:
                    await socket.send_json(message)
                received = await socket.receive(10)
                is_text = received.type is aiohttp.WSMsgType.TEXT
                answers.append(received.json() if is_text else None)
        return answers

    return asyncio.run(exchange())
