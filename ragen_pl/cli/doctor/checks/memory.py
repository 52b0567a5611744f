"""The memory plan against the machine's memory."""

from __future__ import annotations

from collections.abc import Iterator

from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.plan.render import gib
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.findings import Finding, failure, ok, warning


def check_memory(subject: ExaminedRun) -> Iterator[Finding]:
    """Plan the memory of the run; the model is not built if the machine cannot hold it."""
    _ = subject.parts  # its errors are another check's
    try:
        need = subject.memory
    except ConfigError as error:  # such as an engine that manages its own memory
        yield ok(f"not planned: {error}")
        return
    text = (
        f"the run needs {gib(need.needed)} GiB in the phase {need.phase}, and {need.place} has "
        f"{gib(need.there)} GiB"
    )
    remedy = ", or ".join(need.remedies)
    if need.is_too_much:
        yield failure(text, remedy)
    elif need.needed > need.free:
        yield warning(
            f"{text}, of which {gib(need.free)} GiB are free now",
            f"end other programs; or {remedy}",
        )
    else:
        yield ok(text)
