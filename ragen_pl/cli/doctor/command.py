"""The command ``run.py doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.doctor.checks import CHECKS
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.findings_page import print_findings
from ragen_pl.envs.contract_kit.examination import examine

_DESCRIPTION = """\
Check a configured run on this machine in about half a minute: environment, chat template, answers,
rewards, lengths, memory, threads, devices, sampling, run folder. Takes the configs and options of
fit. The exit status is 1 if something has failed.
"""


def doctor(argv: Sequence[str]) -> int:
    """Print one line per check, with what is wrong and how to mend it.

    Args:
        argv: Arguments after ``doctor``, with paths in place of the names of configs.

    Returns:
        The exit status: 1 if a check has failed, else 0.
    """
    parser = CommandParser("doctor", _DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")
    options, rest = parser.parse_before_keys(list(argv))
    return print_findings(examine(ExaminedRun(rest), CHECKS), as_json=options.json)
