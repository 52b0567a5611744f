"""The page that ``doctor`` and ``check-env`` print: a line per finding, or JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout

from ragen_pl.runtime.findings import CheckFinding, has_failed, summary

_STDOUT, _STDERR = 1, 2
"""File descriptors."""


def print_findings(found: Iterable[CheckFinding], *, as_json: bool) -> int:
    """Print findings as they are made; return the exit status, 1 if one is a failure, else 0.

    What the checks themselves print goes to standard error.
    """
    begin, lines, out, subject = time.monotonic(), list[CheckFinding](), sys.stdout, ""
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:  # an encoding without these characters must not end it
        reconfigure(errors="replace")
    with _processes_on_stderr(as_json), redirect_stdout(sys.stderr):
        for line in found:
            lines.append(line)
            if as_json:
                continue
            if line.subject != subject:
                print(f"\n{line.subject}" if subject else line.subject, file=out)
            subject = line.subject
            print(line.text, file=out, flush=True)
    seconds, failed = time.monotonic() - begin, has_failed(lines)
    if as_json:
        plain = [line.plain for line in lines]
        page = {"ok": not failed, "seconds": round(seconds, 1), "findings": plain}
        print(json.dumps(page, indent=1))
    else:
        print(f"\n{summary(lines, seconds)}")
    return int(failed)


@contextmanager
def _processes_on_stderr(wanted: bool) -> Iterator[None]:
    """Let processes that are started within, such as environments' workers, print to standard error
    as well: nothing but the page may be on standard output."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        os.dup2(kept, _STDOUT)
        os.close(kept)
