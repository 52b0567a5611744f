"""Be the entry point: prepare the command line, run the application, word the errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ragen_pl.cli.config_files import PLAN, prepare
from ragen_pl.errors import ConfigError
from ragen_pl.runtime.wait_policy import limit_spinning

INTERRUPTED = 130
BAD_CONFIG = 2


def main(argv: Sequence[str]) -> int:
    """Run a command and return the exit status: 0, 2 for a bad configuration, 130 and 143 after
    SIGINT and SIGTERM."""
    try:
        prepared = prepare(argv)
        limit_spinning()  # before PyTorch is loaded
        # Imported here, so that a wrong file name is an error at once.
        if prepared[:1] == [PLAN]:
            from ragen_pl.cli.plan.command import plan

            plan(prepared[1:])
        else:
            from ragen_pl.cli.application import run

            run(prepared)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_CONFIG
    except KeyboardInterrupt:  # before the run took over the signals
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
