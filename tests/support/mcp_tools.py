"""A small MCP server for tests, run as a program over its standard input and output, or over HTTP
at the port that is its argument."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("tests")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def process() -> str:
    """Name the process."""
    return str(os.getpid())


@server.tool()
def broken() -> str:
    """Raise."""
    raise RuntimeError("it is broken")


@server.tool()
def leave() -> str:
    """End the server in the middle of the call."""
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
