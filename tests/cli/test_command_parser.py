"""Options of the commands that take a configuration's keys as well."""

from __future__ import annotations

import pytest

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.errors import ConfigError


def parser() -> CommandParser:
    made = CommandParser("serve", "Serve.")
    made.add_argument("--port", type=int, default=8000)
    return made


def test_keys_of_a_configuration_are_left_to_it() -> None:
    keys = ["--config", "a.yaml", "--data.port", "3", "--report.on", "true", "--threads=1"]
    options, rest = parser().parse_before_keys(["--port", "3", *keys])
    assert options.port == 3
    assert rest == keys


@pytest.mark.parametrize("given", [["--prt", "3"], ["--prt=3"]])
def test_an_option_that_is_no_key_is_corrected_by_the_commands_own(given: list[str]) -> None:
    with pytest.raises(ConfigError, match="serve: unknown option --prt; did you mean --port"):
        parser().parse_before_keys(["--config", "a.yaml", *given])


def test_a_key_that_is_nearly_an_option_is_a_key() -> None:
    _, rest = parser().parse_before_keys(["--report", "null"])
    assert rest == ["--report", "null"]
