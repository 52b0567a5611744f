"""The command ``run.py doctor``."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.doctor.checks import CHECKS
from ragen_pl.cli.doctor.examination import Line, examine
from ragen_pl.cli.doctor.finding import Level
from ragen_pl.cli.doctor.subject import Subject
from ragen_pl.runtime.visible_text import visible

_DESCRIPTION = """\
Check a configured run on this machine in about half a minute: environment, chat template, answers,
rewards, lengths, memory, threads, devices, sampling, run folder. Takes the configs and options of
fit. The exit status is 1 if something has failed.
"""
_WIDTH, _INDENT = 100, 25


def doctor(argv: Sequence[str]) -> int:
    """Print one line per check, with what is wrong and how to mend it.

    Args:
        argv: Arguments after ``doctor``, with paths in place of the names of configs.

    Returns:
        The exit status: 1 if a check has failed, else 0.
    """
    parser = CommandParser("doctor", _DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")
    options, rest = parser.parse_known_args(list(argv))
    begin, lines, out = time.monotonic(), list[Line](), sys.stdout
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:  # an encoding without these characters must not end it
        reconfigure(errors="replace")
    with redirect_stdout(sys.stderr):  # what models and data print while they are built
        for line in examine(Subject(rest), CHECKS):
            lines.append(line)
            if not options.json:
                print(_text(line), file=out, flush=True)
    counts = {level: sum(line.finding.level is level for line in lines) for level in Level}
    seconds = time.monotonic() - begin
    if options.json:
        print(json.dumps(_plain(lines, seconds), indent=1))
    else:
        found = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
        print(f"\n{found}; {seconds:.0f} s")
    return int(counts[Level.FAILURE] > 0)


def _text(line: Line) -> str:
    finding = line.finding
    head = f"{finding.level:<9}{line.check:<{_INDENT - 9}}"
    parts = [_wrapped(head, finding.text)]
    if finding.remedy:
        parts.append(_wrapped(" " * (_INDENT - 2) + "→ ", finding.remedy))
    parts += [_wrapped(" " * _INDENT, detail) for detail in finding.details]
    return "\n".join(parts)


def _wrapped(head: str, text: str) -> str:
    return textwrap.fill(
        visible(text),
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _plain(lines: Sequence[Line], seconds: float) -> dict[str, Any]:
    return {
        "ok": all(line.finding.level is not Level.FAILURE for line in lines),
        "seconds": round(seconds, 1),
        "findings": [
            {
                "check": line.check,
                "level": str(line.finding.level),
                "text": line.finding.text,
                "remedy": line.finding.remedy,
                "details": list(line.finding.details),
                "seconds": round(line.seconds, 2),
            }
            for line in lines
        ],
    }
