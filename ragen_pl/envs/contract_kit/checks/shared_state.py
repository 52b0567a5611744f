"""State that copies of an environment share."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.contract_kit.shared_state import find_shared_state
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding, ok


def check_shared_state(subject: ExaminedEnv) -> Iterator[Finding]:
    """Look what has changed outside of an environment after an episode."""
    found = list(find_shared_state(subject.env, subject.key, 0))
    yield from found
    if not found:
        yield ok("it keeps its state to itself and draws from no global generator")
