"""The parser of the commands that start no run, such as ``plan`` and ``report``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from ragen_pl.cli.config.messages import no_value
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
        self._given: list[str] = []

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments and keep them, for the error's message."""
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def parse_before_keys(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the command's own options, and leave the keys of a configuration.

        Raises:
            ConfigError: for an option that is no key and nearly one of the command's own.
        """
        own = [name.lstrip("-") for name in self._option_string_actions]
        options, rest = self.parse_known_args(argv)
        for given in rest:
            name = given.removeprefix("--").partition("=")[0]
            is_plain = given.startswith("--") and "." not in name
            nearest = get_close_matches(name, own, n=1, cutoff=0.7) if is_plain else []
            if nearest:
                from ragen_pl.cli.config.groups import schema_of  # heavy, and seldom needed

                if name not in schema_of("fit"):
                    raise self._unknown(f"--{name}", f"did you mean --{nearest[0]}?")
        return options, rest

    def error(self, message: str) -> NoReturn:
        """Raise the error; of arguments that are missing beside an unknown option, the latter is
        told.

        Raises:
            ConfigError: always.
        """
        known = list(self._option_string_actions)
        given = [arg.partition("=")[0] for arg in self._given if arg.startswith("--")]
        unknown = [option for option in given if option not in known and option != "--"]
        if unknown and message.startswith(("the following", "unrecognized")):
            nearest = get_close_matches(unknown[0][2:], [name.lstrip("-") for name in known], n=1)
            hint = f"did you mean --{nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            raise self._unknown(unknown[0], hint)
        valueless = re.match(r"argument (\S+): expected one argument", message)
        if valueless:
            message = no_value(valueless[1])
        stray = re.match(r"unrecognized arguments: (.*)", message)
        if stray:
            message = f"{stray[1]} is one argument too many; --help says what there is"
        raise ConfigError(f"{self._command}: {message}")

    def _unknown(self, option: str, hint: str) -> ConfigError:
        return ConfigError(f"{self._command}: unknown option {option}; {hint}")


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
