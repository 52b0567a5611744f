"""The entry point of ``ragen-pl``, ``python -m ragen_pl`` and ``run.py``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from ragen_pl.cli.config.files import (
    CHAT,
    CHECK_ENV,
    COMMANDS,
    COMPARE,
    DOCTOR,
    FETCH,
    NEW,
    PINS,
    PLAN,
    PLAY,
    READS_RUNS,
    REPORT,
    SERVE,
    prepare,
)
from ragen_pl.cli.config.messages import refuse_unknown_command
from ragen_pl.cli.help_page import help_page
from ragen_pl.cli.new_project import new_project
from ragen_pl.errors import ConfigError, LostRankError
from ragen_pl.runtime.user_faults import (
    how_it_ends,
    is_own_end,
    module_that_exits,
    place_of_fault,
)
from ragen_pl.runtime.visible_text import log_visibly, visible
from ragen_pl.runtime.wait_policy import limit_spinning

INTERRUPTED = 130
BAD_CONFIG = 2
FAILED = 1
_FUNCTIONS = {
    PLAN: "ragen_pl.cli.plan.command.plan",
    PLAY: "ragen_pl.cli.play.command.play",
    CHAT: "ragen_pl.cli.chat.command.chat",
    DOCTOR: "ragen_pl.cli.doctor.command.doctor",
    CHECK_ENV: "ragen_pl.cli.check_env.check_env",
    COMPARE: "ragen_pl.cli.compare.compare_runs",
    FETCH: "ragen_pl.cli.fetch.fetch",
    PINS: "ragen_pl.cli.pins.print_pins",
    REPORT: "ragen_pl.cli.report.report",
    SERVE: "ragen_pl.cli.serve.serve",
}
"""The functions of the commands that start no run. Each takes the arguments after the command, and
returns the exit status or None for 0."""
_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds ``ragen_pl`` and ``callbacks``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0, 1 if ``doctor`` or ``check-env`` finds a
    failure or another rank of the run failed, 2 for a bad configuration, 130, 143 and 138 after
    SIGINT, SIGTERM and SIGUSR1.

    Args:
        argv: The command and its options; None takes those of the process.
    """
    argv = sys.argv[1:] if argv is None else argv
    log_visibly()
    if {"-h", "--help"} & set(argv) and not set(COMMANDS) & set(argv):
        print(help_page())
        return 0
    if list(argv) in (["--version"], ["-V"]):
        print(f"ragen-pl {version('ragen-pl')}")
        return 0
    try:
        if argv and argv[0] == NEW:
            new_project(argv[1:])
            return 0
        if not set(COMMANDS) & set(argv):
            refuse_unknown_command(argv)
        prepared = list(argv) if argv and argv[0] in (FETCH, *READS_RUNS) else prepare(argv)
        refuse_unknown_command(prepared)
        limit_spinning()  # before PyTorch is loaded
        run = _load(prepared)
        with _own_modules_first(), _exits_told():
            status = run(prepared)
    except ConfigError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return BAD_CONFIG
    except LostRankError as error:
        print(f"error: {visible(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:  # before the run took over the signals
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _load(argv: Sequence[str]) -> Callable[[Sequence[str]], object]:
    """Import the function that runs a command.

    The import is slow, so file names are checked before it. Meanwhile the working directory is not
    searched for modules: a user's ``callbacks`` or ``datasets`` there must not be imported instead
    of the installed one.

    Raises:
        ConfigError: when another module ``callbacks`` was imported before, as in a script or a test
            that starts a run.
    """
    other = sys.modules.get("callbacks")
    if other is not None and not hasattr(other, "VarianceFilter"):
        raise ConfigError(
            f"the module callbacks is {getattr(other, '__file__', other)}, but ragen-pl has a "
            "package of this name: rename yours"
        )
    here = Path.cwd()
    with _search_path(p for p in sys.path if here == _ROOT or Path(p).resolve() != here):
        if argv and argv[0] in _FUNCTIONS:
            module, _, name = _FUNCTIONS[argv[0]].rpartition(".")
            function = getattr(importlib.import_module(module), name)
            return lambda argv: function(argv[1:])
        from ragen_pl.cli.application import Application, run

        return partial(run, kind=Application)


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
def _exits_told() -> Iterator[None]:
    """Tell of a user's code that ends the program: a module when it is imported, or an environment
    or callback in a run, whose exit status is kept unless it says that all went well.

    Raises:
        ConfigError: naming the module or the line, and what it ends with.
    """
    try:
        yield
    except SystemExit as error:
        if is_own_end(error):
            raise
        module = module_that_exits(error)
        if not module and not place_of_fault(error):  # of a library's own command line
            raise
        if not module:
            told = f"code of yours ended the run: {how_it_ends(error)}; raise an exception instead"
            if not error.code:
                raise ConfigError(told) from error
            print(f"error: {visible(told)}", file=sys.stderr)
            raise
        raise ConfigError(
            f"{module} cannot be imported: {how_it_ends(error)}\n"
            '  what only a script is to do belongs below if __name__ == "__main__":'
        ) from error


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
