"""``WebSocketSession``, a session of an OpenEnv server for code that waits for its answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # else imported at the first connection: all adapters would take a second longer
    import aiohttp

_LARGEST_MESSAGE = 1 << 24
"""Bytes of an answer: far more than an observation may have."""
_SHOWN = 300

T = TypeVar("T")


class WebSocketSession:
    """A session that connects when it is first asked, from any thread.

    A copy, and one that was pickled, is a session of its own, which is not connected yet. The
    connection is closed when the session is collected as garbage.

    Args:
        url: Address of the WebSocket.
        time_limit: Seconds to connect in, and for each answer.
    """

    def __init__(self, url: str, time_limit: float) -> None:
        self._url, self._time_limit = url, time_limit
        self._connection: _Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._url, "time_limit": self._time_limit}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._url, self._time_limit = state["url"], state["time_limit"]
        self._connection = None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None and not sys.is_finalizing():
            self._drop()

    @property
    def is_open(self) -> bool:
        """Whether it is connected; the server knows of no earlier connection's episode."""
        return self._connection is not None and self._connection.is_open

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message, after connecting if need be, and return the answer.

        Raises:
            ConnectionError: if the server cannot be reached, or the connection breaks.
            TimeoutError: if it does not answer in time.
            RuntimeError: if it answers with an error.
        """
        connection = self._connected()
        try:
            answer = connection.loop.wait(connection.exchange(message), self._time_limit)
        except TimeoutError:
            self._drop()  # its answer would be taken for that of the next message
            raise TimeoutError(
                f"{self._url} did not answer a {message['type']} within {self._time_limit:g} s: "
                "raise time_limit, or give the server more to work with"
            ) from None
        except ConnectionError as error:
            self._drop()
            raise ConnectionError(f"{self._url} broke off: {error}") from error
        if answer.get("type") == "error":
            self._refused(message, answer.get("data"))
        return answer

    def _refused(self, message: Mapping[str, Any], told: Any) -> None:
        """Raise the error that a server answered with."""
        details = told if isinstance(told, dict) else {}
        code, text = details.get("code", "UNKNOWN"), details.get("message", told)
        remedy = ""
        if code == "CAPACITY_REACHED":
            self._drop()
            remedy = ": raise its number of concurrent sessions, or play fewer trajectories at once"
        raise RuntimeError(
            f"{self._url} answered a {message['type']} with {code}: {text!s:.{_SHOWN}}{remedy}"
        )

    def _connected(self) -> _Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        self._drop()
        loop = _Loop.of_this_process()
        try:
            self._connection = loop.wait(_connect(self._url, loop), self._time_limit)
        except TimeoutError:
            raise ConnectionError(
                f"{self._url} cannot be reached within {self._time_limit:g} s: start the server, "
                "or correct url"
            ) from None
        except OSError as error:
            raise ConnectionError(
                f"{self._url} cannot be reached ({error}): start the server, or correct url"
            ) from error
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.loop.is_own:
            connection.loop.begin(connection.close())


class _Loop:
    """An event loop in a thread, which all sessions of this process share."""

    _lock = threading.Lock()
    _shared: _Loop | None = None

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="open_env", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _Loop:
        """Return the loop, which is started if there is none in this process."""
        with cls._lock:
            if cls._shared is None or not cls._shared.is_own:  # a fork has no threads
                cls._shared = cls()
            return cls._shared

    @property
    def is_own(self) -> bool:
        """Whether it runs in this process."""
        return self._process == os.getpid()

    def wait(self, work: Coroutine[Any, Any, T], limit: float) -> T:
        """Run a coroutine to its end; raise a TimeoutError after a number of seconds."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, limit), self._loop).result()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine without waiting for it."""
        asyncio.run_coroutine_threadsafe(work, self._loop)


class _Connection:
    """An open WebSocket, which is read all the time, so that the server's pings are answered.

    Args:
        loop: The loop it lives in.
        client: Its client, which is closed with it.
        socket: The WebSocket.
    """

    def __init__(
        self,
        loop: _Loop,
        client: aiohttp.ClientSession,
        socket: aiohttp.ClientWebSocketResponse,
    ) -> None:
        self.loop, self._client, self._socket = loop, client, socket
        self._received: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        """Keep what is received; None is the end."""
        try:
            async for message in self._socket:
                self._received.put_nowait(message.data)
        finally:
            self._received.put_nowait(None)

    @property
    def is_open(self) -> bool:
        """Whether it can be used in this process."""
        return self.loop.is_own and not self._socket.closed and not self._reading.done()

    async def exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a message and wait for the answer.

        Raises:
            ConnectionError: if the other side has closed, or what it sent is no object of JSON.
        """
        await self._socket.send_str(json.dumps(message))
        received = await self._received.get()
        if received is None:
            raise ConnectionError(f"it was closed (code {self._socket.close_code})")
        try:
            answer = json.loads(received)
        except ValueError as error:
            raise ConnectionError(f"its answer is no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ConnectionError(f"its answer is no object: {received!s:.{_SHOWN}}")
        return answer

    async def close(self) -> None:
        """Close the WebSocket and its client."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()
        await self._client.close()


async def _connect(url: str, loop: _Loop) -> _Connection:
    import aiohttp

    client = aiohttp.ClientSession()
    try:
        socket = await client.ws_connect(url, max_msg_size=_LARGEST_MESSAGE)
    except aiohttp.ClientError as error:
        await client.close()
        raise ConnectionError(str(error)) from error
    except BaseException:  # the limit of time is a cancellation
        await client.close()
        raise
    return _Connection(loop, client, socket)
