"""The contract of ``TextEnv``, by short episodes on several copies."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.boundary import CheckedEnv
from ragen_pl.envs.contract.plain_data import NOISE_REMEDY, generator_in
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding, failure, ok, warning

MEND = "mend the method that is named (docs/extending.md has the contract)"
"""What to do about a broken contract."""


def check_contract_of(subject: ExaminedEnv) -> Iterator[Finding]:
    """Run the check that every command runs before it depends on an environment."""
    if subject.broken_contract:
        yield failure(subject.broken_contract, MEND)
        return
    env = CheckedEnv(subject.copy())
    env.reset(0, 0)
    env.vocabulary()  # an EnvError tells what is wrong with it
    if place := generator_in(env.state()):
        yield warning(
            f"get_state holds a random generator, at {place}: states that are reached again are "
            "never equal to what they were, so that nothing is learned from their comparison",
            NOISE_REMEDY,
        )
        return
    yield ok("the seed decides the start and the noise seed the rest; states are restored")
