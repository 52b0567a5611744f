"""A chat-completions endpoint in this process, answered by a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An answer of the endpoint: a status and a body."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def completion(content: str | None, finish_reason: str = "stop", **message: Any) -> Answer:
    """Return a chat completion as OpenAI's schema has it."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, **message},
        "finish_reason": finish_reason,
    }
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    return Answer(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    )


def call(name: str, arguments: Any, call_id: str = "abc123def") -> dict[str, Any]:
    """Return a call of a tool as a completion's message has it; arguments are JSON in a text."""
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": given}}


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    path: str
    body: dict[str, Any]
    authorization: str | None


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[tuple[str, list[Asked]]]:
    """Serve answers to request bodies; yield the URL and the list of requests so far."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(Asked(self.path, body, self.headers.get("Authorization")))
            given = answer(body)
            content = given.body if isinstance(given.body, str) else json.dumps(given.body)
            data = content.encode()
            self.send_response(given.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in given.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
