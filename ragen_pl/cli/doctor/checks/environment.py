"""The environments by their contract."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.envs.contract import check_contract
from ragen_pl.runtime.findings import Finding, failure, ok


def check_environment(subject: ExaminedRun) -> Iterator[Finding]:
    """Check every environment against ``TextEnv``'s contract."""
    is_whole = True
    for key, env in subject.envs.items():
        try:
            check_contract(env, key)
        except ValueError as error:
            is_whole = False
            yield failure(
                str(error), "mend the method that is named (docs/extending.md has the contract)"
            )
    if is_whole:
        yield ok(f"{', '.join(subject.envs)}: TextEnv's contract holds")
