"""The command ``run.py compare``: the difference between policies, paired start by start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.errors import ConfigError
from ragen_pl.report.comparison import (
    compare_what_is_comparable,
    format_comparison,
    read_policy,
    to_json,
)
from ragen_pl.runtime.visible_text import visible

_DESCRIPTION = """\
Compare policies on the evaluation sets that they share, paired by initial state: success of each,
the difference in points with its 95 % interval, and the p-value of the hypothesis that they are
equal. Every policy is compared with the first. Sets with different fingerprints are refused.
"""


def _parser() -> CommandParser:
    parser = CommandParser("compare", _DESCRIPTION)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder, its results.json, or a file in its evaluations/",
    )
    parser.add_argument(
        "--policy",
        action="append",
        help="the policy to take from each RUN, such as final or warm-started (default: final); "
        "given several times, one for each RUN in order",
    )
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    return parser


def compare_runs(argv: Sequence[str]) -> None:
    """Print the comparison of two or more policies.

    Args:
        argv: Arguments after ``compare``.

    Raises:
        ConfigError: when a run has no results, or nothing can be compared.
    """
    given = _parser().parse_args(list(argv))
    policies = given.policy or [None]
    runs = given.runs * len(policies) if len(given.runs) == 1 else given.runs
    policies = policies * len(runs) if len(policies) == 1 else policies
    if len(runs) < 2 or len(runs) != len(policies):
        raise ConfigError(
            f"compare: {len(given.runs)} RUN and {len(given.policy or ())} --policy are given: "
            "give two or more RUN with no, one or equally many --policy, or one RUN with two or "
            "more --policy"
        )
    results = [read_policy(run, policy) for run, policy in zip(runs, policies, strict=True)]
    names = [f"{run} ({each[0].policy})" for run, each in zip(runs, results, strict=True)]
    try:
        found = {
            name: compare_what_is_comparable(results[0], other)
            for name, other in zip(names[1:], results[1:], strict=True)
        }
    except ValueError as error:
        raise ConfigError(f"compare: {error}") from error
    refused = [reason for each in found.values() for reason in each.refused]
    if refused and not any(each.differences for each in found.values()):
        raise ConfigError("compare: " + "\n".join(refused[:3]))
    if given.json:
        print(to_json(found, names[0]))  # JSON escapes control characters
        return
    tables = (format_comparison(each, names[0], name) for name, each in found.items())
    print("\n\n".join(map(visible, tables)))
