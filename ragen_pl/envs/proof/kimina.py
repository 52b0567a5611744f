"""``Kimina``: Lean 4 behind a Kimina Lean server, a pool of Lean processes that speaks HTTP."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ragen_pl.envs.base import one_of
from ragen_pl.envs.proof.lean_prover import (
    STANDARD_AXIOMS,
    LeanProver,
    LeanReport,
    message_of,
)
from ragen_pl.envs.proof.prover import ProverError

Route = Literal["check", "verify"]
_PATHS: Mapping[str, str] = {"check": "/api/check", "verify": "/verify"}
_TRIES = 4
_PATIENCE = 60.0
"""Seconds that a server may let a check wait for a free process."""
_SHOWN = 200


@dataclass(frozen=True)
class Kimina(LeanProver):
    """Lean 4 behind a Kimina Lean server (arXiv 2504.21230), as a prover.

    The server keeps processes that have imported Mathlib, so that a check takes as long as the
    proof. Lean runs there, outside our sandbox: a server in a container has no one else's files.

    Args:
        url: Address of the server.
        route: ``check`` posts to ``/api/check`` (version 2), ``verify`` to ``/verify``, which
            version 1 has.
        seconds: Time of a check.
        key_variable: Environment variable that holds the server's key, if it is set. A key is never
            a value of the configuration, which is saved and logged.
        axioms: Axioms a proof may rest on.
    """

    url: str = "http://127.0.0.1:8000"
    route: Route = "check"
    seconds: int = 60
    key_variable: str = "KIMINA_API_KEY"
    axioms: tuple[str, ...] = STANDARD_AXIOMS

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(
                f"url: {self.url!r} is no address, such as http://127.0.0.1:8000 of a Kimina server"
            )
        if self.seconds < 1:
            raise ValueError(f"seconds: {self.seconds} is not positive")
        one_of("route", self.route, Route)

    @property
    def allowed_axioms(self) -> frozenset[str]:
        """Axioms a proof may rest on."""
        return frozenset(self.axioms)

    def report(self, text: str) -> LeanReport:
        """Let the server check a file."""
        if self.route == "check":
            asked: dict[str, Any] = {"snippets": [{"id": "theorem", "code": text}]}
        else:
            asked = {"codes": [{"custom_id": "theorem", "proof": text}]}
        answer = self._post({**asked, "timeout": self.seconds})
        try:
            result = answer["results"][0]
            if error := result.get("error"):
                return LeanReport(fault=str(error), late="timed out" in str(error))
            response = result["response"]
            if "message" in response:  # of the REPL, not of Lean
                return LeanReport(fault=str(response["message"]))
            rows = response.get("messages") or ()
        except (LookupError, TypeError, AttributeError) as error:
            raise ProverError(
                f"{self._address} does not answer as a Kimina server: {str(answer)[:_SHOWN]}"
            ) from error
        return LeanReport(tuple(message_of(row) for row in rows))

    @property
    def _address(self) -> str:
        return self.url.rstrip("/") + _PATHS[self.route]

    def _post(self, asked: Mapping[str, Any]) -> Any:
        """Send a request, again where another try may mend it.

        Raises:
            ProverError: if the server does not answer it.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self._address, json.dumps(asked).encode(), headers)
        failure = ""
        for attempt in range(_TRIES):
            time.sleep(0.5 * attempt)
            try:
                with urllib.request.urlopen(request, timeout=self.seconds + _PATIENCE) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                failure = f"answers {error.code}: {error.read(_SHOWN).decode(errors='replace')}"
                if error.code != 429 and error.code < 500:
                    break
            except OSError as error:  # of connections, and URLError
                failure = f"cannot be reached ({error})"
            except ValueError:
                failure = "answers with what is no JSON"
                break
        raise ProverError(
            f"{self._address} {failure}: start the Kimina server there, or set url, route and "
            f"the environment variable {self.key_variable}"
        )
