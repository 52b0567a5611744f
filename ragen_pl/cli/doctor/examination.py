"""The examination: every check in order, whatever the others find."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ragen_pl.cli.doctor.finding import Check, Finding, Level
from ragen_pl.cli.doctor.subject import Subject, UnavailableError
from ragen_pl.envs.boundary import EnvError, describe_fault
from ragen_pl.errors import ConfigError

_ENV_LOG = "ragen_pl.envs"


@dataclass(frozen=True, slots=True)
class Line:
    """A finding with the check that it is from."""

    check: str
    finding: Finding
    seconds: float
    """Time since the check began."""


def examine(subject: Subject, checks: Mapping[str, Check]) -> Iterator[Line]:
    """Run the checks and yield their findings."""
    with _quiet_environments():
        for name, check in checks.items():
            begin = time.monotonic()
            for finding in _findings(subject, check):
                yield Line(name, finding, time.monotonic() - begin)


def _findings(subject: Subject, check: Check) -> Iterator[Finding]:
    try:
        yield from check(subject)
    except UnavailableError as error:
        yield Finding(Level.SKIPPED, f"needs what has failed above ({error})")
    except (ConfigError, EnvError) as error:
        text, _, remedy = str(error).partition("\n")
        yield Finding(Level.FAILURE, text, " ".join(remedy.split()))
    except Exception as error:  # checks run user code: environments, reward terms, models
        yield Finding(Level.FAILURE, describe_fault(error), "mend what is named, or report it")


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
