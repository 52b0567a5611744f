"""Errors that are shown to the user without a traceback."""

from __future__ import annotations


class ConfigError(ValueError):
    """An error in the configuration or in something that it names. The message has one to three
    lines: what is wrong and what to do. The command prints it without a traceback."""


class LostRankError(Exception):
    """The loss of another rank, which told why it failed. The command prints this without a
    traceback, which would be about connections."""
