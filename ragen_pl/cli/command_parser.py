"""The parser of the commands that start no run, such as ``plan`` and ``report``."""

from __future__ import annotations

import argparse
from typing import NoReturn

from ragen_pl.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """A parser of a command's own arguments, which raises one-line errors and prints no usage.

    Args:
        command: The command's name.
        description: Text above the arguments in ``--help``, as it is.
    """

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"run.py {command}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._command = command

    def error(self, message: str) -> NoReturn:
        """Raise the error.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self._command}: {message}")


def seconds(text: str) -> float:
    """Read an option's value as a positive number of seconds.

    Raises:
        ArgumentTypeError: when it is none.
    """
    try:
        read = float(text)
    except ValueError:
        read = -1.0
    if not 0 < read < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return read
