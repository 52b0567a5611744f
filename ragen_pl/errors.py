"""The error that a user sees."""

from __future__ import annotations


class ConfigError(ValueError):
    """What is wrong with the configuration, or with what it names, and what to do, in one to three
    lines; the command prints it without a traceback."""
