"""The command ``run.py report``: the HTML report of one run, or of several to compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.config.groups import default_values
from ragen_pl.errors import ConfigError
from ragen_pl.report.page import MAX_TRAJECTORIES, REPORT, build_report
from ragen_pl.report.run_data import RunReader
from ragen_pl.runtime.durable_files import write_text

_DESCRIPTION = """\
Write one HTML file about a run: learning curves, alarm, evaluations, configuration, and its
trajectories turn by turn. Several runs are also compared with the first. The file needs no network.
"""


def _parser() -> CommandParser:
    parser = CommandParser("report", _DESCRIPTION)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"file to write (default: {REPORT} in the first run's folder; comparison.html there "
        "for several)",
    )
    parser.add_argument(
        "--max_trajectories",
        type=int,
        default=MAX_TRAJECTORIES,
        help="trajectories in the page, spread over iterations, evaluation sets and outcomes "
        f"(default: {MAX_TRAJECTORIES})",
    )
    return parser


def report(argv: Sequence[str]) -> Path:
    """Write a report and return its path.

    Args:
        argv: Arguments after ``report``.

    Raises:
        ConfigError: when a folder holds no run, or the file cannot be written.
    """
    given = _parser().parse_args(argv)
    if given.max_trajectories < 0:
        raise ConfigError(
            f"report: --max_trajectories is {given.max_trajectories}; it must be 0 or more"
        )
    if len({path.resolve() for path in given.runs}) < len(given.runs):
        raise ConfigError("report: a run is named twice; give each folder once")
    try:
        runs = [RunReader(path).read() for path in given.runs]
    except ValueError as error:
        raise ConfigError(f"report: {error}") from error
    name = REPORT if len(runs) == 1 else "comparison.html"
    path: Path = given.out or given.runs[0] / name
    # A run of an earlier version recorded no defaults: those of this version stand in.
    defaults = [run.defaults or default_values(dict(run.config)) for run in runs]
    try:
        write_text(path, build_report(runs, given.max_trajectories, defaults))
    except OSError as error:
        raise ConfigError(f"report: {path} cannot be written: {error.strerror}") from error
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return path
