"""The contract of ``TextEnv``, by short episodes on several copies."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.check import check_contract
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding, failure, ok


def check_contract_of(subject: ExaminedEnv) -> Iterator[Finding]:
    """Run the check that every command runs before it depends on an environment."""
    try:
        check_contract(subject.env, subject.key)
    except ValueError as error:
        yield failure(
            str(error), "mend the method that is named (docs/extending.md has the contract)"
        )
        return
    yield ok("the seed decides the start and the noise seed the rest; states are restored")
