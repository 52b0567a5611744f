"""``MCPServer``: the tools of a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen_pl.envs.packages import load
from ragen_pl.envs.tools.schema import ToolSchema
from ragen_pl.envs.tools.toolbox import Toolbox, ToolUnavailableError


class MCPServer(Toolbox):
    """The tools of an MCP server, which is started as a subprocess and talked to over its pipes, or
    runs elsewhere and is talked to over HTTP.

    It starts, or is connected to, when the tools are first asked for. All trajectories of a process
    share it, so it must keep nothing between calls. One that ends is started, or connected to,
    again for the next trajectory.

    Args:
        command: The program and its arguments, such as ``[python, -m, my_server]``.
        environment: Variables of the program beside a few safe ones, such as ``PATH``.
        timeout_s: Seconds that a start or a call may take. Calls are handed on one at a time; the
            time that one waits for its turn does not count.
        url: Address of a server that runs already, in place of ``command``, such as
            ``http://127.0.0.1:8000/mcp`` (the protocol's streamable HTTP).
        token_variable: Environment variable that holds the bearer token of that server, if it asks
            for one.
    """

    is_repeatable = False

    def __init__(
        self,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        url: str | None = None,
        token_variable: str | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s: {timeout_s} is not positive")
        if (command is None) == (url is None):
            given = "neither command nor url is" if command is None else "command and url are both"
            raise ValueError(
                f"{given} given: name the program that serves the tools, or the address of a "
                "server that runs"
            )
        self._server: _Program | _Address
        if url is None:
            self._server = _Program.of(command or (), environment or {}, token_variable)
        else:
            self._server = _Address.of(url, environment, token_variable)
        load("mcp", "MCPServer", "mcp")
        self._timeout_s = timeout_s

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return what the server says of its tools.

        Raises:
            ToolUnavailableError: if it does not start or answer.
        """
        return self._connection().schemas

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool and return its texts, those of a refused call included.

        Raises:
            ToolUnavailableError: if the server does not start or answer.
        """
        return self._connection().call(name, arguments)

    def _connection(self) -> _Connection:
        key = (os.getpid(), self._server, self._timeout_s)
        with _OPENING:
            found = _OPEN.get(key)
            if found is None or found.has_ended:
                if found is not None:  # what the server holds, such as a port, is free for the next
                    found.close()
                found = _OPEN[key] = _Connection(self._server, self._timeout_s)
        return found


@dataclass(frozen=True, slots=True)
class _Program:
    """A server that is started as a subprocess."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls, command: Sequence[str], environment: Mapping[str, str], token_variable: str | None
    ) -> _Program:
        if not command:
            raise ValueError("command: it is empty; name the program that serves the tools")
        if token_variable is not None:
            raise ValueError(
                f"token_variable is {token_variable}, which is for a server at a url; what a "
                "program needs to know stands in environment"
            )
        return cls(tuple(command), tuple(sorted(environment.items())))

    def __str__(self) -> str:
        return f"the MCP server {' '.join(self.command)}"

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        """Start it and yield what a client talks over."""
        mcp = load("mcp", "MCPServer", "mcp")
        stdio = load("mcp.client.stdio", "MCPServer", "mcp")
        program, *arguments = self.command
        variables = {**stdio.get_default_environment(), **dict(self.environment)}
        server = mcp.StdioServerParameters(command=program, args=arguments, env=variables)
        with Path(os.devnull).open("w", encoding="utf-8") as unread:  # not over the run's display
            yield stdio.stdio_client(server, errlog=unread)


@dataclass(frozen=True, slots=True)
class _Address:
    """A server that runs elsewhere."""

    url: str
    token_variable: str | None

    @classmethod
    def of(
        cls, url: str, environment: Mapping[str, str] | None, token_variable: str | None
    ) -> _Address:
        scheme, separator, rest = url.partition("://")
        if scheme not in ("http", "https") or not separator or not rest:
            raise ValueError(f"url: {url!r} is no address such as http://127.0.0.1:8000/mcp")
        if environment is not None:
            raise ValueError("environment is given, which is for a command; leave it out")
        if token_variable is not None and not os.environ.get(token_variable):
            raise ValueError(
                f"token_variable: the environment variable {token_variable} is not set; set it to "
                f"the token of {url}"
            )
        return cls(url, token_variable)

    def __str__(self) -> str:
        return f"the MCP server at {self.url}"

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Any]:
        """Yield what a client talks over."""
        http = load("mcp.client.streamable_http", "MCPServer", "mcp")
        token = os.environ.get(self.token_variable, "") if self.token_variable else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with http.create_mcp_http_client(headers=headers) as client:
            yield http.streamable_http_client(self.url, http_client=client)


_Key = tuple[int, _Program | _Address, float]

_OPEN: dict[_Key, _Connection] = {}
_OPENING = threading.Lock()
"""Held while servers start and end. The threads that talk to them never take it."""
_LOOK_S = 0.5
"""Seconds between two looks at a call that is waited for."""
_GRACE_S = 10.0
"""Seconds beyond its time after which a call is given up: before, the client itself ends it."""


@atexit.register
def end_servers() -> None:
    """End the servers of this process; the next call starts them again."""
    with _OPENING:
        for connection in _OPEN.values():
            connection.close()
        _OPEN.clear()


class _Connection:
    """A running server: one thread talks to it, others wait for what it says."""

    def __init__(self, server: _Program | _Address, timeout_s: float) -> None:
        self._what, self._timeout_s = str(server), timeout_s
        self.schemas: tuple[ToolSchema, ...] = ()
        self._error = ""
        self._is_ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._calls: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._in_hand: asyncio.Future[Any] | None = None
        self._thread = threading.Thread(target=self._run, args=(server,), name="mcp", daemon=True)
        self._thread.start()
        if not self._is_ready.wait(timeout_s) or self._error:
            self.close()
            late = f"did not start within {timeout_s:g} s (timeout_s)"
            raise ToolUnavailableError(f"{self._what} {self._error or late}")

    @property
    def has_ended(self) -> bool:
        """Whether a new connection is needed."""
        return bool(self._error) or not self._thread.is_alive()

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return what a tool says."""
        request = _Request(name, dict(arguments))
        try:
            self._loop.call_soon_threadsafe(self._calls.put_nowait, request)
        except RuntimeError:  # the loop has ended
            raise ToolUnavailableError(f"{self._what} {self._error or 'has ended'}") from None
        while not request.is_done.wait(_LOOK_S):
            late = request.seconds_in_hand > self._timeout_s + _GRACE_S
            if late or not self._thread.is_alive():
                break
        if request.error or not request.is_done.is_set():
            self._error = self._error or request.error or f"gave no answer to {name}"
            raise ToolUnavailableError(f"{self._what} {self._error}")
        return request.text

    def close(self) -> None:
        """End the server, also in the middle of a call."""
        if self._thread.is_alive() and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:  # it ended meanwhile
                return
            self._thread.join(5.0)

    def _stop(self) -> None:
        """Take no more calls. An end that has begun is left alone: it ends the process."""
        self._calls.put_nowait(None)
        if self._in_hand is not None:
            self._in_hand.cancel()

    def _run(self, server: _Program | _Address) -> None:
        try:
            self._loop.run_until_complete(self._serve(server))
        except asyncio.CancelledError:  # it was closed in the middle of a call
            self._error = self._error or "was closed"
        except Exception as error:  # the boundary to the server: whatever ends it is told
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            self._error = self._error or f"failed: {type(cause).__name__}: {cause}"
        finally:
            self._error = self._error or "has ended"
            self._is_ready.set()
            while not self._calls.empty():
                request = self._calls.get_nowait()
                if request is not None:
                    request.fail(self._error)
            self._loop.close()

    async def _serve(self, server: _Program | _Address) -> None:
        """Talk to the server until it ends, a call at a time."""
        mcp = load("mcp", "MCPServer", "mcp")
        async with (
            server.transport() as transport,
            mcp.Client(transport, read_timeout_seconds=self._timeout_s) as client,
        ):
            self.schemas = await _listed(client)
            self._is_ready.set()
            while (request := await self._calls.get()) is not None:
                request.begin()
                self._in_hand = asyncio.ensure_future(
                    client.call_tool(request.name, request.arguments)
                )
                try:
                    answer = await self._in_hand
                except mcp.MCPError as error:
                    if _is_lost(error):
                        request.fail(f"failed: {error}")
                        raise
                    request.finish(f"Error: {error}")
                except BaseException as error:
                    request.fail(f"failed: {type(error).__name__}: {error}")
                    raise
                else:
                    request.finish(_text(answer))
                finally:
                    self._in_hand = None


class _Request:
    """A call on its way to the server and back."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self.name, self.arguments = name, arguments
        self.text = self.error = ""
        self.is_done = threading.Event()
        self._begun: float | None = None

    @property
    def seconds_in_hand(self) -> float:
        """Seconds since the server was handed the call; 0 before."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    def begin(self) -> None:
        self._begun = time.monotonic()

    def finish(self, text: str) -> None:
        self.text = text
        self.is_done.set()

    def fail(self, error: str) -> None:
        self.error = error
        self.is_done.set()


async def _listed(client: Any) -> tuple[ToolSchema, ...]:
    """Return the schemas of all pages."""
    found, page = list[ToolSchema](), await client.list_tools()
    found += map(_schema, page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += map(_schema, page.tools)
    return tuple(found)


_LOST = ("CONNECTION_CLOSED", "REQUEST_TIMEOUT")
"""Names of the errors after which the server is given up."""


def _is_lost(error: Any) -> bool:
    types = load("mcp.types", "MCPServer", "mcp")
    return error.error.code in {getattr(types, name) for name in _LOST}


def _schema(tool: Any) -> ToolSchema:
    return ToolSchema(tool.name, tool.description or tool.name, dict(tool.input_schema))


def _text(answer: Any) -> str:
    """Return the texts of an answer; other contents are named."""
    parts = [
        each.text if each.type == "text" else f"({each.type}, which cannot be shown)"
        for each in answer.content
    ]
    text = "\n".join(parts)
    return f"Error: {text}" if answer.is_error else text
