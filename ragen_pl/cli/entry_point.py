"""The entry point of ``ragen-pl``, ``python -m ragen_pl`` and ``run.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ragen_pl.cli.config_files import NEW, PLAN, REPORT, prepare
from ragen_pl.cli.new_project import new_project
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.wait_policy import limit_spinning

INTERRUPTED = 130
BAD_CONFIG = 2
_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds ``ragen_pl`` and ``callbacks``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0, 2 for a bad configuration, 130 and 143 after
    SIGINT and SIGTERM.

    Args:
        argv: The command and its options; None takes those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] == NEW:
            new_project(argv[1:])
            return 0
        prepared = list(argv) if argv[:1] == [REPORT] else prepare(argv)
        limit_spinning()  # before PyTorch is loaded
        run = _load(prepared)
        with _own_modules_first():
            run(prepared)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:  # before the run took over the signals
        return INTERRUPTED
    return 0


def _load(argv: Sequence[str]) -> Callable[[Sequence[str]], object]:
    """Import the function that runs a command.

    The import is slow, so file names are checked before it. Meanwhile the working directory is not
    searched for modules: a user's ``callbacks`` or ``datasets`` there must not be imported instead
    of the installed one.
    """
    here = Path.cwd()
    with _search_path(p for p in sys.path if here == _ROOT or Path(p).resolve() != here):
        if argv[:1] == [PLAN]:
            from ragen_pl.cli.plan.command import plan

            return lambda argv: plan(argv[1:])
        if argv[:1] == [REPORT]:
            from ragen_pl.cli.report import report

            return lambda argv: report(argv[1:])
        from ragen_pl.cli.application import run

        return run


@contextmanager
def _own_modules_first() -> Iterator[None]:
    """Search the working directory first for the modules that a configuration names.

    A folder ``callbacks`` there adds its modules to the shipped ones, and comes before them.
    """
    import callbacks

    here = Path.cwd()
    shipped, own = list(callbacks.__path__), here / callbacks.__name__
    if own.is_dir() and str(own) not in shipped:
        callbacks.__path__[:0] = [str(own)]
    try:
        with _search_path([str(here), *sys.path]):
            yield
    finally:
        callbacks.__path__[:] = shipped


@contextmanager
def _search_path(folders: Iterable[str]) -> Iterator[None]:
    """Search only these folders for modules, within the context."""
    before = list(sys.path)
    sys.path[:] = folders
    try:
        yield
    finally:
        sys.path[:] = before


if __name__ == "__main__":
    sys.exit(main())
