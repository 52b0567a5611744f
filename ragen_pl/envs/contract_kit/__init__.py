"""The contract kit: a thorough examination of an environment, for the command ``check-env`` and for
tests.

In a test: ``assert_contract(MyEnv())``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_declared
from ragen_pl.envs.contract_kit.checks import CHECKS
from ragen_pl.envs.contract_kit.checks.contract import MEND
from ragen_pl.envs.contract_kit.examination import examine
from ragen_pl.envs.contract_kit.subject import SECONDS, ExaminedEnv
from ragen_pl.runtime.findings import CheckFinding, Finding, Severity, failure, has_failed

__all__ = ["assert_contract", "examine_env"]


def examine_env(env: TextEnv, key: str = "env", seconds: float = SECONDS) -> Iterator[CheckFinding]:
    """Examine an environment, which is not changed, and yield what is found.

    One that declares something wrong, such as a method that is none, is not played.

    Args:
        env: The environment.
        key: Its name in messages.
        seconds: Time after which a check of a slow environment tries no further start.
    """
    try:
        check_declared(env, key)
    except ValueError as error:
        first, *others = CHECKS
        yield CheckFinding(first, failure(str(error), MEND), 0.0)
        for name in others:
            yield CheckFinding(name, Finding(Severity.SKIPPED, f"needs {first}"), 0.0)
        return
    yield from examine(ExaminedEnv(env, key, seconds), CHECKS)


def assert_contract(env: TextEnv, seconds: float = SECONDS) -> None:
    """Assert that an examination finds no failure, in a test of an environment.

    Args:
        env: The environment, which is not changed.
        seconds: Time after which a check of a slow environment tries no further start.

    Raises:
        AssertionError: with every failure, and what to do about it.
    """
    lines = list(examine_env(env, type(env).__name__, seconds))
    failed = [line for line in lines if has_failed([line])]
    told = "\n".join(line.text for line in failed)
    assert not failed, f"{type(env).__name__} breaks the contract of environments:\n{told}"
