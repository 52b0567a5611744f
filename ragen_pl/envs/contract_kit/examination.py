"""The examination of a subject: every check in order, whatever the others find."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ragen_pl.envs import boundary, contract
from ragen_pl.envs.boundary import EnvError
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.findings import CheckFinding, Finding, Severity
from ragen_pl.runtime.slow_calls import telling_of_long_calls
from ragen_pl.runtime.user_faults import describe_fault

_CALLERS = (
    Path(__file__).parent,
    Path(contract.__file__).parent,
    Path(boundary.__file__),
)
"""The code that asks environments."""
_ENV_LOG = "ragen_pl.envs"

T = TypeVar("T")


class UnavailableError(Exception):
    """A part whose making has failed before; the check that asked first has reported why."""


def examine(
    subject: T, checks: Mapping[str, Callable[[T], Iterator[Finding]]]
) -> Iterator[CheckFinding]:
    """Run the checks by name and yield their findings.

    A check yields one finding, or one for each thing that is wrong. What it raises becomes a
    failure, and is told once: checks that fail for the same reason are skipped.
    """
    told = list[EnvError | str]()
    with _quiet_environments():
        for name, check in checks.items():
            begin = time.monotonic()
            with telling_of_long_calls(f"check {name}", _CALLERS):
                for finding in _findings(subject, check, told):
                    if finding.level is Severity.FAILURE:
                        told.append(finding.text)
                    yield CheckFinding(name, finding, time.monotonic() - begin)


def _findings(
    subject: T, check: Callable[[T], Iterator[Finding]], told: list[EnvError | str]
) -> Iterator[Finding]:
    try:
        yield from check(subject)
    except UnavailableError as error:
        yield Finding(Severity.SKIPPED, f"needs what has failed above ({error})")
    except EnvError as error:
        if any(_is_same(error, each) for each in told):
            method = str(error).partition(" ")[0]
            yield Finding(Severity.SKIPPED, f"needs what has failed above ({method})")
            return
        told.append(error)
        yield Finding(Severity.FAILURE, str(error), "mend the method that is named")
    except ConfigError as error:
        text, _, remedy = str(error).partition("\n")
        yield Finding(Severity.FAILURE, text, " ".join(remedy.split()))
    except Exception as error:  # checks run user code: environments, reward terms, models
        if any(_is_cause_in(error, str(each)) for each in told):
            kind = type(error).__name__
            yield Finding(Severity.SKIPPED, f"needs what has failed above ({kind})")
            return
        yield Finding(Severity.FAILURE, describe_fault(error), "mend what is named, or report it")


def _is_same(error: EnvError, told: EnvError | str) -> bool:
    """Return whether an error has been told before, by itself or within a finding's text."""
    if isinstance(told, str):
        return str(error) in told or _is_cause_in(error.__cause__, told)
    return error.kind == told.kind


def _is_cause_in(error: BaseException | None, text: str) -> bool:
    """Return whether a text tells what user code raised."""
    return error is not None and str(error) != "" and f"{type(error).__name__}: {error}" in text


@contextmanager
def _quiet_environments() -> Iterator[None]:
    """Leave out the environments' warnings, which the findings repeat."""
    log = logging.getLogger(_ENV_LOG)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
