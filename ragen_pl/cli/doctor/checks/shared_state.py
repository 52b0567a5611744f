"""State that copies of an environment share."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.envs.contract_kit.shared_state import find_shared_state
from ragen_pl.runtime.findings import Finding, ok


def check_shared_state(subject: ExaminedRun) -> Iterator[Finding]:
    """Play an episode in every environment and look what has changed outside of it."""
    found = False
    for key, env in subject.envs.items():
        for finding in find_shared_state(env, key, subject.first_seed):
            found = True
            yield finding
    if not found:
        yield ok("environments keep their state to themselves")
